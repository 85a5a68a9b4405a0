"""`load_run`: a file or text to a checked TrainingRun, or one SpecError with every problem at once.

Called by the CLI and the engines. Nothing but a SamiteError leaves this module, whatever the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samite.errors import NotAllowedError, NotFoundError, Problem, SpecError, UsageError
from samite.spec import yaml_tree
from samite.spec.assignments import apply_assignments
from samite.spec.filled import filled_document
from samite.spec.rules import Finding, check_rules
from samite.spec.run import TrainingRun
from samite.spec.schema_problems import check_schema
from samite.spec.support import check_support, local_path
from samite.spec.yaml_tree import Path as YamlPath
from samite.spec.yaml_tree import Tree, dotted

MAX_BYTES = 262_144
"""Largest document: what `kubectl apply` can carry in its annotation. A run with sixteen stages needs a tenth of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedRun:
    """A valid run and where it came from."""

    run: TrainingRun
    """The run, with relative paths made absolute and every default filled in."""
    document: dict[str, Any]
    """The document as it was given, after `--set`, without nulls."""
    source: str
    """The file's name, or `<text>`."""
    text: str
    """The YAML as it was given, before `--set`."""
    lines: dict[str, int] = field(default_factory=dict)
    """Line of each dotted path that is in the file."""


def load_run(path_or_text: Path | str | bytes, *, sets: Sequence[str] = ()) -> LoadedRun:
    """Read and check one TrainingRun.

    `path_or_text` is a path, or the YAML itself (bytes, a str with a line break, or one that begins with `{`). `sets` are assignments such as
    `optimizer.learningRate=1e-5` or `stages[0].budget.steps=20`, applied in order before checking; their values are read as YAML.
    Raises SpecError with every problem; NotFoundError, NotAllowedError or UsageError when the file cannot be read.
    """
    text, source, folder = _read(path_or_text)
    tree = yaml_tree.parse_yaml(text)
    if tree.problems and tree.value is None:
        raise SpecError(_in_file_order(tree.problems), source)
    tree.problems += apply_assignments(tree, sets)
    run, problems = check_tree(tree, folder)
    if problems or run is None:
        raise SpecError(_in_file_order(problems), source)
    lines = {dotted(path): line for path, line in tree.lines.items() if path}
    return LoadedRun(run=run, document=tree.value, source=source, text=text, lines=lines)


def check_tree(tree: Tree, folder: Path) -> tuple[TrainingRun | None, list[Problem]]:
    """The run of a parsed tree, and all its problems: of the text, of single fields, of rules over several fields, of this version."""
    if not isinstance(tree.value, dict):
        found = "nothing" if tree.value is None else "a list" if isinstance(tree.value, list) else "a single value"
        hint = "begin with apiVersion: samite.dev/v1alpha1 and kind: TrainingRun; examples/quickstart/run.yaml is a good start"
        return None, tree.problems or [Problem(path="", wanted="a TrainingRun", found=found, hint=hint, line=tree.line_of(()))]
    tree.value = _without_nulls(tree.value)
    if (problem := _other_kind(tree)) is not None:
        return None, [problem]
    verdict = check_schema(tree)
    filled = filled_document(tree.value, verdict.bad | tree.unusable)
    findings = [finding for _, finding in check_rules(filled)] + check_support(filled, folder)
    told = {problem.path for problem in tree.problems}
    problems = [*tree.problems, *(problem for problem in verdict.problems if problem.path not in told), *_problems(findings, tree)]
    return (None if problems or verdict.run is None else _with_absolute_paths(verdict.run, folder)), problems


def _other_kind(tree: Tree) -> Problem | None:
    """A document of another kind: one message instead of one for each of its fields."""
    kind = tree.value.get("kind")
    if not isinstance(kind, str) or ("trainingrun".startswith(kind.lower()[:5]) and kind):
        return None
    return Problem(
        path="kind", wanted="TrainingRun", found=f'"{kind}"', hint="this is a document for something else", line=tree.line_of(("kind",))
    )


def _problems(findings: list[Finding], tree: Tree) -> list[Problem]:
    """Findings with their lines. One place has one message: of several about the same field the first one stays."""
    kept: dict[YamlPath, Finding] = {}
    for finding in findings:
        kept.setdefault(finding.path, finding)
    return [Problem(path=dotted(f.path), wanted=f.wanted, found=f.found, hint=f.hint, line=tree.line_of(f.path)) for f in kept.values()]


def _with_absolute_paths(run: TrainingRun, folder: Path) -> TrainingRun:
    """Relative corpus paths start from the file's folder; workers start somewhere else."""

    def absolute(uri: str) -> str:
        path = local_path(uri, folder)
        return uri if path is None or uri.startswith("file://") else str(path)

    stages = tuple(
        stage.model_copy(update={"data": stage.data.model_copy(update={"uri": absolute(stage.data.uri)})})
        if stage.data and stage.data.uri
        else stage
        for stage in run.spec.stages
    )
    data = run.spec.data.model_copy(update={"uri": absolute(run.spec.data.uri)})
    return run.model_copy(update={"spec": run.spec.model_copy(update={"data": data, "stages": stages})})


def _read(path_or_text: Path | str | bytes) -> tuple[str, str, Path]:
    """Text, name for messages, and the folder that relative paths start from."""
    if isinstance(path_or_text, bytes):
        return _decoded(path_or_text, "<text>"), "<text>", Path.cwd()
    if isinstance(path_or_text, str) and ("\n" in path_or_text or path_or_text.lstrip()[:1] in {"", "{"}):
        return _decoded(path_or_text.encode("utf-8", "surrogatepass"), "<text>"), "<text>", Path.cwd()
    path = Path(path_or_text)
    source = _printable(str(path_or_text))
    try:
        if path.is_dir():
            raise UsageError(f"{source} is a folder. Give the file: {path / 'run.yaml'}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        folder = path.resolve().parent
    except FileNotFoundError as error:
        raise NotFoundError(f"{source} does not exist{_neighbours(path)}") from error
    except PermissionError as error:
        raise NotAllowedError(f"{source} cannot be read: permission denied") from error
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{source} cannot be read: {_printable(str(error))}") from error
    return _decoded(data, source), source, folder


def _decoded(data: bytes, source: str) -> str:
    if len(data) > MAX_BYTES:
        problem = Problem(
            path="",
            wanted=f"at most {MAX_BYTES} bytes",
            found="more",
            hint="is this a TrainingRun? kubectl apply cannot carry a larger one",
        )
        raise SpecError([problem], source)
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x}"
        raise SpecError([Problem(path="", wanted="UTF-8 text", found=found, hint="save the file as UTF-8", line=line)], source) from error


def _printable(text: str) -> str:
    shown = text if len(text) <= 4096 else text[:4093] + "..."
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


def _neighbours(path: Path) -> str:
    """A computed suggestion: the YAML files that are there instead."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    there = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix in {".yaml", ".yml"})[:5]
    return f". In {path.parent} there is: {', '.join(there)}" if there else f". In {path.parent} there is no YAML file"


def _without_nulls(value: Any) -> Any:
    """As Kubernetes does it: a null means that the field is left out."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _in_file_order(problems: list[Problem]) -> list[Problem]:
    """By line; problems without one (of `--set`) last."""
    return sorted(problems, key=lambda problem: (problem.line is None, problem.line or 0))
