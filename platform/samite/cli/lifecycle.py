"""`samite cancel | suspend | resume | restart`: what a person asks of a run. Asking is a file or a patch; supervisor or operator answer it."""

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
    client, found = _find(run)
    _refuse_if_over(client, found, "cancel")
    status = client.status(found)
    loss = _what_is_lost(status)
    if dry_run:
        note(f"would cancel {found.name} ({status['phase']}); {loss}")
        return
    if not confirm(f"Cancel {found.name} ({status['phase']})? {loss}.", yes=yes):
        return
    client.wish(found, cancel=True)
    _then(client, found, "Cancelled", wait=wait, timeout_s=timeout)


def suspend(run: RunArgument, wait: WaitOption = False, timeout: TimeoutOption = 300.0, dry_run: DryRunOption = False) -> None:
    """Pause a run: checkpoint, then give the nodes back. `samite resume` goes on from there."""
    client, found = _find(run)
    _refuse_if_over(client, found, "suspend")
    if dry_run:
        note(f"would suspend {found.name} ({client.status(found)['phase']}) after a checkpoint")
        return
    client.wish(found, suspend=True)
    _then(client, found, "Suspended", wait=wait, timeout_s=timeout)


def resume(run: RunArgument, wait: WaitOption = False, timeout: TimeoutOption = 300.0, dry_run: DryRunOption = False) -> None:
    """Let a suspended or held run go on, with a fresh budget for what it held on; or bring back the supervisor of one that lost its own."""
    from samite.engines.base import who
    from samite.lifecycle import RequestKind

    client, found = _find(run)
    _refuse_if_over(client, found, "resume")
    phase = client.status(found)["phase"]
    if dry_run:
        note(f"would resume {found.name} ({phase})")
        return
    client.wish(found, suspend=False)
    if phase == "Held":
        client.ask(found, RequestKind.RESUME, by=who())
    _then(client, found, "Running", wait=wait, timeout_s=timeout, leaving=phase)


def restart(
    run: RunArgument,
    level: Annotated[str, typer.Option("--level", help="L2: next attempt on the same nodes. L3: new nodes too.")] = "L2",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Start the next attempt now, from the newest checkpoint."""
    from samite.engines.base import who
    from samite.errors import UsageError
    from samite.lifecycle import RequestKind

    if level not in {"L2", "L3"}:
        raise UsageError(f"--level {level!r}: wanted L2 or L3")
    client, found = _find(run)
    _refuse_if_over(client, found, "restart")
    loss = _what_is_lost(client.status(found))
    if dry_run:
        note(f"would restart {found.name} at {level}; {loss}")
        return
    if confirm(f"Restart {found.name} at {level}? {loss}.", yes=yes):
        client.ask(found, RequestKind.RESTART, argument=level, by=who())
        client.attend(found)
        note(f"asked {found.name} to restart at {level}")


def _find(run: str) -> tuple[Any, Any]:
    from samite.cli.place import find

    return find(run)


def _then(client: Any, found: Any, phase: str, *, wait: bool, timeout_s: float, leaving: str = "") -> None:
    from samite.cli.place import command

    client.attend(found)
    if wait:
        from samite.cli.watch import wait_for

        wait_for(client, found, phase=phase, timeout_s=timeout_s, leaving=leaving)
    else:
        note(f"asked; to watch: {command(client, 'status', found.name, '-w')}")


def _refuse_if_over(client: Any, found: Any, verb: str) -> None:
    from samite.engines.base import TERMINAL_PHASES
    from samite.errors import ConflictError

    phase = client.status(found)["phase"]
    if phase in TERMINAL_PHASES:
        raise ConflictError(f"cannot {verb} {found.name!r}: it is {phase} already")


def _what_is_lost(status: dict[str, Any]) -> str:
    progress, saved = status.get("progress", {}), status.get("lastCheckpointStep")
    steps = int(progress.get("step", 0)) - int(saved or 0)
    if steps <= 0:
        return "nothing is lost: the newest checkpoint is as new as the run"
    return f"{steps} steps since the newest checkpoint are lost (about {duration(steps * float(progress.get('stepS') or 0.0))})"
