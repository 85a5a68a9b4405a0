"""pydantic's verdict on single fields, said in the words of the spec."""

from pydantic import ValidationError

from samite.errors import Problem
from samite.spec.run import TrainingRun
from samite.spec.yaml_tree import Tree, dotted


def check_schema(tree: Tree) -> tuple[TrainingRun | None, list[Problem]]:
    """The run, or one problem for each field that is unknown, missing, or not what it must be."""
    try:
        return TrainingRun.model_validate(tree.value, by_alias=True, by_name=False), []
    except ValidationError as error:
        return None, [
            Problem(path=dotted(tuple(e["loc"])), wanted=e["msg"], found=str(e["input"]), line=tree.line_of(tuple(e["loc"])))
            for e in error.errors()
        ]
