"""The root of the `samite` command: registration, and the one place where errors become messages and exit codes.

Exit codes are those of the error tree (samite.errors); 130 means interrupted, with the run untouched. No command prints a traceback
unless `--debug` is given, and no traceback ever shows local variables: they may hold credentials.
"""

import importlib
import os
import sys
from typing import Annotated

import typer

from samite.cli.place import ContextOption, KubeconfigOption, NamespaceOption, add_flags, fresh_flags, take_flag
from samite.cli.submit import with_dry_run_value

COMMAND_MODULES = (
    "submit",
    "runs",
    "top",
    "logs",
    "event_lines",
    "lifecycle",
    "checkpoints",
    "stages",
    "nodes",
    "data",
    "chaos",
    "validate",
    "explain",
    "schema",
    "crds",
    "report",
    "dashboards",
    "alerts",
    "doctor",
    "version",
)
"""Modules of samite.cli in the order of `samite --help`; each exports `register(app)` and imports nothing heavy."""

ClickError: type[Exception] = typer.BadParameter.__mro__[2]
"""Click's base of all usage errors. Typer brings its own copy of Click from 0.27 on, so it is reached through a class that Typer exports."""

app = typer.Typer(
    name="samite",
    help="Train Kimi-K3-style models that survive their machines.\n\n"
    "Start with: samite submit -f run.yaml --follow. A run goes on when you close the terminal; "
    "samite status shows where it is, samite report shows what it did.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of unexpected errors (never local variables).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No hints on stderr; data and errors only.")] = False,
    context: ContextOption = "",
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = "",
) -> None:
    """Options that stand before the command."""
    for name, value in (("context", context), ("namespace", namespace), ("kubeconfig", kubeconfig)):
        take_flag(name, value)
    if debug:
        os.environ["SAMITE_DEBUG"] = "1"
    if quiet:
        os.environ["SAMITE_QUIET"] = "1"


for _name in COMMAND_MODULES:
    importlib.import_module(f"samite.cli.{_name}").register(app)


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; prints errors to stderr, verbatim."""
    from samite.cli.output import error
    from samite.errors import SamiteError, SpecError

    try:
        with fresh_flags():
            command = typer.main.get_command(app)
            add_flags(command)
            words = list(sys.argv[1:] if arguments is None else arguments)
            result = command(args=with_dry_run_value(words) if "submit" in words else words, standalone_mode=False, prog_name="samite")
        return int(result) if isinstance(result, int) else 0
    except SpecError as failure:
        from samite.cli.validate import format_problems

        error(format_problems(failure))
        return failure.exit_code
    except SamiteError as failure:
        error(f"error: {failure}")
        _trace_if_asked()
        return failure.exit_code
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        error("interrupted")
        return 130
    except ClickError as failure:
        return _usage(failure)
    except BrokenPipeError:
        # The reader went away (`samite logs ... | head -1`): be quiet, and keep the interpreter from flushing into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as failure:  # noqa: BLE001 - the last line of defence: a person reads this, not a traceback
        return _unexpected(failure)


def _usage(failure: Exception) -> int:
    from samite.cli.output import error

    error(f"error: {failure.format_message()}")  # type: ignore[attr-defined]
    context = getattr(failure, "ctx", None)
    if context is not None:
        error(f"Try: {context.command_path} --help")
    return int(getattr(failure, "exit_code", 2))


def _unexpected(failure: Exception) -> int:
    from samite.cli.output import error

    error(f"error: unexpected {type(failure).__name__}: {failure}")
    if not _trace_if_asked():
        error("This is a fault in Samite. Run the command again as `samite --debug ...` for the traceback.")
    return 1


def _trace_if_asked() -> bool:
    """Print the traceback without local variables if --debug was given."""
    if os.environ.get("SAMITE_DEBUG", "") in {"", "0"}:
        return False
    import traceback

    sys.stderr.write(traceback.format_exc())
    return True
