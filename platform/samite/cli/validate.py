"""`samite validate`: every problem of a spec at once, each with its place and a way out."""

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from samite.cli.output import OutputFormat, error, note, one_line, print_document, print_text

if TYPE_CHECKING:
    from samite.errors import SpecError

WIDTH = 110
"""Characters of an explanation in one line."""


def register(app: typer.Typer) -> None:
    """Add `validate`."""
    app.command()(validate)


def validate(
    files: Annotated[
        list[str], typer.Option("--file", "-f", help="The spec: a file, or - for standard input. May be given several times.")
    ],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field first, such as optimizer.learningRate=1e-5.")
    ] = None,
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="table, json, yaml or name.")] = OutputFormat.table,
) -> int:
    """Check specs without running them. Prints every problem with its line, what was wanted, what was found, and what to write; exit code 3."""
    from samite.errors import SamiteError, SpecError

    results, codes = [], []
    for file in files:
        try:
            run = _load(file, sets or []).run
        except SpecError as failure:
            results.append(_result(file, failure))
            codes.append(failure.exit_code)
            if output is not OutputFormat.json and output is not OutputFormat.yaml:
                error(format_problems(failure))
        except SamiteError as failure:
            results.append({"source": file, "valid": False, "name": None, "problems": [], "error": str(failure)})
            codes.append(failure.exit_code)
            error(f"error: {failure}")
        else:
            results.append({"source": file, "valid": True, "name": run.name, "problems": []})
            if output is OutputFormat.name:
                print_text(run.name)
            elif output is not OutputFormat.json and output is not OutputFormat.yaml:
                steps = run.total_steps
                num_stages = len(run.spec.stages)
                length = f"{steps} steps" if steps is not None else "as long as its clock says"
                print_text(f"{file} is valid: {run.name}, {num_stages} stage{'s' if num_stages != 1 else ''}, {length}")
    if output in {OutputFormat.json, OutputFormat.yaml}:
        print_document({"apiVersion": "samite.dev/v1alpha1", "kind": "ValidationReport", "items": results}, output)
    # Of several failures the one that says most: a spec that was read and is wrong, before a file that could not be read.
    return 3 if 3 in codes else max(codes, default=0)


def _load(file: str, sets: list[str]):  # type: ignore[no-untyped-def]  # noqa: ANN202 - LoadedRun, whose import costs what --help must not
    from pathlib import Path

    from samite.spec import load_run

    if file != "-":
        return load_run(Path(file), sets=sets)
    import sys

    if sys.stdin.isatty():
        note("reading the spec from standard input; end with Ctrl-D")
    return load_run(sys.stdin.buffer.read(), sets=sets)


def format_problems(failure: "SpecError") -> str:
    """All problems of one spec, as text: place and path on one line, what was wanted, what was found, and what to do below it."""
    source = one_line(failure.source)
    blocks = []
    for problem in failure.problems:
        place = f"{source}:{problem.line}" if problem.line else source
        head = f"{place}  {one_line(problem.path)}" if problem.path else place
        # What was found stays in one piece, so that it can be searched for and copied; what was wanted is ours and may be long.
        wanted, found = f"wanted {one_line(problem.wanted)};", f"found {one_line(problem.found)}"
        says = [f"{wanted} {found}"] if len(wanted) + len(found) < WIDTH else [*textwrap.wrap(wanted, WIDTH, break_long_words=False), found]
        hint = [one_line(problem.hint)] if problem.hint else []
        blocks.append("\n".join([head, *(" " * (len(place) + 2) + line for line in [*says, *hint])]))
    return "\n".join([*blocks, one_line(str(failure))])


def _result(file: str, failure: "SpecError") -> dict[str, object]:
    problems = [
        {"path": problem.path, "line": problem.line, "wanted": problem.wanted, "found": problem.found, "hint": problem.hint}
        for problem in failure.problems
    ]
    return {"source": file, "valid": False, "name": None, "problems": problems}
