"""Everything a command prints: data on stdout, words for people on stderr, always verbatim.

Rich is used for tables on a terminal only, and never parses markup: a path such as `/tmp/[v1]/run.yaml` must come out as it went in.
Off a terminal, or with NO_COLOR, tables are plain padded columns.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

API_VERSION = "samite.dev/v1alpha1"


class OutputFormat(StrEnum):
    """How a command prints its data."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    name = "name"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="table, wide, json, yaml or name (names only, for scripts).")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of the run; may be omitted when only one is active.", show_default=False)
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table. `value` maps an item to its text; `wide` columns show with -o wide only."""

    title: str
    value: Callable[[Mapping[str, Any]], str]
    wide: bool = False
    right: bool = False


def note(text: str) -> None:
    """One line for people, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def hint(text: str) -> None:
    """A suggestion, on stderr; `--quiet` drops it."""
    if os.environ.get("SAMITE_QUIET", "") in {"", "0"}:
        note(text)


def error(text: str) -> None:
    """An error, on stderr, verbatim."""
    note(text)


def is_terminal() -> bool:
    """True if stdout is a terminal that may be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def use_color() -> bool:
    """True if colour is welcome: a terminal, and NO_COLOR not set (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def print_items(
    items: Sequence[Mapping[str, Any]],
    output: OutputFormat,
    *,
    kind: str,
    columns: Sequence[Column],
    name: Callable[[Mapping[str, Any]], str] = lambda item: str(item["name"]),
    empty: str = "",
) -> None:
    """Print a list: a table, or a `<kind>List` document. `empty` is said on stderr when a table would have no rows."""
    if output is OutputFormat.name:
        print_lines(name(item) for item in items)
    elif output in {OutputFormat.json, OutputFormat.yaml}:
        print_document({"apiVersion": API_VERSION, "kind": f"{kind}List", "items": list(items)}, output)
    elif not items:
        if empty:
            note(empty)
    else:
        shown = [column for column in columns if output is OutputFormat.wide or not column.wide]
        print_table(
            [column.title for column in shown], [[column.value(item) for column in shown] for item in items], [c.right for c in shown]
        )


def print_document(document: Mapping[str, Any], output: OutputFormat) -> None:
    """Print one document as JSON or YAML (anything but yaml prints JSON)."""
    if output is OutputFormat.yaml:
        import yaml

        print_text(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True).rstrip("\n"))
    else:
        import json

        from samite.telemetry.jsonlines import without_nonfinite

        print_text(json.dumps(without_nonfinite(document), indent=2, ensure_ascii=False, default=str, allow_nan=False))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> None:
    """Print rows in columns: with Rich on a terminal, padded text elsewhere."""
    aligned_right = list(right) or [False] * len(titles)
    if is_terminal():
        _print_rich_table(titles, rows, aligned_right)
        return
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(titles), *cells]) for i in range(len(titles))]
    for line in [list(titles), *cells]:
        padded = [cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(line, widths, aligned_right, strict=True)]
        print_text("  ".join(padded).rstrip())


def _print_rich_table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold" if use_color() else "")
    for title, r in zip(titles, right, strict=True):
        table.add_column(Text(title), justify="right" if r else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    Console(no_color=not use_color(), highlight=False, markup=False, emoji=False).print(table)


def print_lines(lines: Iterable[str]) -> None:
    """Print each line to stdout."""
    for line in lines:
        print_text(line)


def print_text(text: str) -> None:
    """Write text and a newline to stdout; characters that the terminal cannot show are replaced, never fatal."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    sys.stdout.flush()


def one_line(text: str) -> str:
    """Control characters made visible, so that a cell stays a cell and no escape sequence reaches the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if c not in "\n\t\r" else " " for c in text)


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on a terminal; without one, or with SAMITE_NO_INPUT, `--yes` is needed. Raises UsageError when nobody can answer."""
    if yes:
        return True
    from samite.errors import UsageError
    from samite.settings import Settings

    if Settings.from_environment().no_input or not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here: add --yes to go on.")
    return typer.confirm(question, err=True)


def ago(seconds: float) -> str:
    """A short age: `12s`, `5m`, `3h`, `2d`."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def duration(seconds: float | None) -> str:
    """A duration for people: `850 ms`, `12.3 s`, `4m05s`, `2h10m`, `3d04h`; `-` if unknown."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def size(num_bytes: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(num_bytes) < 1024 or unit == "TiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
