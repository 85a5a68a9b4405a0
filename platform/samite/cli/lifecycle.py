"""`samite cancel | suspend | resume | restart`: what a person asks of a run. Asking is a file; the supervisor answers within a second."""

import getpass
from typing import Annotated, Any

import typer

from samite.cli.output import DryRunOption, YesOption, confirm, duration, note

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)]
WaitOption = Annotated[bool, typer.Option("--wait", help="Return when it is done.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, help="Longest wait, in seconds.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (cancel, suspend, resume, restart):
        app.command()(command)


def cancel(
    run: RunArgument, wait: WaitOption = False, timeout: TimeoutOption = 120.0, yes: YesOption = False, dry_run: DryRunOption = False
) -> None:
    """End a run for good. Its committed checkpoints, logs and report stay."""
    engine, folder = _find(run)
    _refuse_if_over(engine, folder, "cancel")
    status = engine.status(folder)
    loss = _what_is_lost(status)
    if dry_run:
        note(f"would cancel {folder.name} ({status['phase']}); {loss}")
        return
    if not confirm(f"Cancel {folder.name} ({status['phase']})? {loss}.", yes=yes):
        return
    _wish(folder, cancel=True)
    _then(engine, folder, "Cancelled", wait=wait, timeout_s=timeout)


def suspend(run: RunArgument, wait: WaitOption = False, timeout: TimeoutOption = 300.0, dry_run: DryRunOption = False) -> None:
    """Pause a run: checkpoint, then give the nodes back. `samite resume` goes on from there."""
    engine, folder = _find(run)
    _refuse_if_over(engine, folder, "suspend")
    if dry_run:
        note(f"would suspend {folder.name} ({engine.status(folder)['phase']}) after a checkpoint")
        return
    _wish(folder, suspend=True)
    _then(engine, folder, "Suspended", wait=wait, timeout_s=timeout)


def resume(run: RunArgument, wait: WaitOption = False, timeout: TimeoutOption = 300.0, dry_run: DryRunOption = False) -> None:
    """Let a suspended or held run go on, with a fresh budget for what it held on; or bring back the supervisor of one that lost its own."""
    from samite.engines.local.requests import ask
    from samite.lifecycle import RequestKind

    engine, folder = _find(run)
    _refuse_if_over(engine, folder, "resume")
    phase = engine.status(folder)["phase"]
    if dry_run:
        note(f"would resume {folder.name} ({phase})")
        return
    _wish(folder, suspend=False)
    if phase == "Held":
        ask(folder, RequestKind.RESUME, by=_who())
    _then(engine, folder, "Running", wait=wait, timeout_s=timeout)


def restart(
    run: RunArgument,
    level: Annotated[str, typer.Option("--level", help="L2: next attempt on the same nodes. L3: new nodes too.")] = "L2",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Start the next attempt now, from the newest checkpoint."""
    from samite.engines.local.requests import ask
    from samite.errors import UsageError
    from samite.lifecycle import RequestKind

    if level not in {"L2", "L3"}:
        raise UsageError(f"--level {level!r}: wanted L2 or L3")
    engine, folder = _find(run)
    _refuse_if_over(engine, folder, "restart")
    loss = _what_is_lost(engine.status(folder))
    if dry_run:
        note(f"would restart {folder.name} at {level}; {loss}")
        return
    if confirm(f"Restart {folder.name} at {level}? {loss}.", yes=yes):
        ask(folder, RequestKind.RESTART, argument=level, by=_who())
        engine.ensure_supervisor(folder)
        note(f"asked {folder.name} to restart at {level}")


def _find(run: str) -> tuple[Any, Any]:
    from samite.engines.local.client import LocalEngine
    from samite.settings import Settings

    engine = LocalEngine(Settings.from_environment())
    return engine, engine.find(run)


def _wish(folder: Any, **wishes: bool) -> None:
    from samite.engines.local.requests import wish

    wish(folder, **wishes)


def _then(engine: Any, folder: Any, phase: str, *, wait: bool, timeout_s: float) -> None:
    engine.ensure_supervisor(folder)
    if wait:
        from samite.cli.watch import wait_for

        wait_for(engine, folder, phase=phase, timeout_s=timeout_s)
    else:
        note(f"asked; to watch: samite status {folder.name} -w")


def _refuse_if_over(engine: Any, folder: Any, verb: str) -> None:
    from samite.engines.local.client import TERMINAL_PHASES
    from samite.errors import ConflictError

    phase = engine.status(folder)["phase"]
    if phase in TERMINAL_PHASES:
        raise ConflictError(f"cannot {verb} {folder.name!r}: it is {phase} already")


def _what_is_lost(status: dict[str, Any]) -> str:
    progress, saved = status.get("progress", {}), status.get("lastCheckpointStep")
    steps = int(progress.get("step", 0)) - int(saved or 0)
    if steps <= 0:
        return "nothing is lost: the newest checkpoint is as new as the run"
    return f"{steps} steps since the newest checkpoint are lost (about {duration(steps * float(progress.get('stepS') or 0.0))})"


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
