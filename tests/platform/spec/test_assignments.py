"""`--set path=value` means what the same value means in the file."""

import pytest

from samite.errors import SpecError
from samite.spec import load_run
from samite.spec.assignments import parse_path

RUN = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: a}
spec:
  stages:
    - {name: first, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}}
    - {name: second, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}, handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}}
"""


def refused(*sets: str) -> SpecError:
    with pytest.raises(SpecError) as error:
        load_run(RUN, sets=sets)
    return error.value


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("optimizer.learningRate", ("spec", "optimizer", "learningRate")),
        ("spec.optimizer.learningRate", ("spec", "optimizer", "learningRate")),
        ("metadata.name", ("metadata", "name")),
        ("stages[0].budget.steps", ("spec", "stages", 0, "budget", "steps")),
        ("stages[first].budget", ("spec", "stages", "first", "budget")),
        ("a[1][2]", ("spec", "a", 1, 2)),
        ("", None),
        (".", None),
        ("a.", None),
        ("a..b", None),
        ("[0]", None),
        ("a[", None),
        ("a[]", None),
        ("a]b", None),
    ],
)
def test_a_path_is_read_or_refused(text: str, path: object):
    assert parse_path(text) == path


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("3e-4", 3e-4), ("1", 1.0), ("0.000_5", 0.0005), (" 1e-5 ", 1e-5)])
def test_a_number_means_what_it_means_in_the_file(text: str, value: float):
    assert load_run(RUN, sets=[f"optimizer.learningRate={text}"]).run.spec.optimizer.learning_rate == value


@pytest.mark.parametrize("name", ["on", "1e3", "010", "y", "1_000", "~", ""])
def test_a_name_that_yaml_does_not_take_for_text_is_refused(name: str):
    paths = [problem.path for problem in refused(f"metadata.name={name}").problems]
    assert paths == ["--set metadata.name"] or paths == ["metadata.name"]


def test_a_quoted_value_is_text():
    with pytest.raises(SpecError) as error:
        load_run(RUN, sets=['metadata.name="1e3"'])
    assert error.value.problems[0].found == '"1e3", given by --set'


def test_a_stage_is_found_by_number_and_by_name():
    run = load_run(RUN, sets=["stages[0].budget.steps=5", "stages[second].budget.steps=7"]).run
    assert [stage.num_steps for stage in run.spec.stages] == [5, 7]


def test_a_later_assignment_wins():
    assert load_run(RUN, sets=["seed=1", "seed=2"]).run.spec.seed == 2


def test_missing_mappings_and_lists_are_made():
    run = load_run(RUN, sets=["checkpoint.keep.last=9", "env[0].name=A", "env[0].value='1'", "env[1].name=B", "env[1].value=x"]).run
    assert run.spec.checkpoint.keep.last == 9
    assert [(variable.name, variable.value) for variable in run.spec.env] == [("A", "1"), ("B", "x")]


def test_a_null_removes_a_field():
    run = load_run(RUN, sets=["stages[0].budget.steps=~", "stages[0].budget.tokens=1024"]).run
    assert run.spec.stages[0].num_steps == 2


def test_mappings_can_be_given_whole():
    run = load_run(RUN, sets=["stages[0].budget={wallSeconds: 30}"]).run
    assert run.spec.stages[0].budget.wall_seconds == 30


@pytest.mark.parametrize(
    "text",
    [
        "seed",
        "=5",
        "a..b=1",
        "stages[7].name=a",
        "stages[nobody].name=a",
        "metadata.name.below=1",
        "stages.name=a",
        "metadata[0]=1",
        "seed={",
        "seed=#1",
    ],
)
def test_an_assignment_that_cannot_be_made_is_one_problem(text: str):
    problems = refused(text).problems
    assert [problem.path.startswith("--set") for problem in problems] == [True]


def test_all_assignments_that_cannot_be_made_are_told_at_once():
    assert len(refused("seed", "stages[7].name=a", "x=1").problems) == 3


def test_a_problem_of_an_assignment_has_no_line_of_the_file():
    problem = refused("stages[0].contextLength=8K").problems[0]
    assert (problem.line, problem.hint) == (None, "write 8192")


def test_an_alias_is_not_changed_with_its_anchor():
    text = RUN.replace(
        "    - {name: first, contextLength: 64, batch: {tokens: 512}", "    - {name: first, contextLength: 64, batch: &b {tokens: 512}"
    )
    text = text.replace("name: second, contextLength: 64, batch: {tokens: 512}", "name: second, contextLength: 64, batch: *b")
    run = load_run(text, sets=["stages[0].batch.tokens=1024"]).run
    assert [stage.batch.tokens for stage in run.spec.stages] == [1024, 512]


def test_the_value_of_a_refused_assignment_is_not_shown():
    text = str(refused("env[9].value=hunter2", "a..b=hunter2", "env[0]=hunter2: x: y").problems)
    assert "hunter2" not in text
