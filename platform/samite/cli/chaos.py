"""`samite chaos`: break a run on purpose and see that it recovers. Local runs only; every fault is announced in the run's events."""

import getpass
import json
import os
import signal
from typing import Annotated, Any

import typer

from samite.cli.output import note

OptionalRun = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Name of the run; may be left out when only one is active.", show_default=False)
]
RankOption = Annotated[int, typer.Option("--rank", min=0, help="Which rank.")]
StepOption = Annotated[int, typer.Option("--step", help="Optimizer step of the run to strike at; -1 for the next one.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        name="chaos",
        help="Break a local run on purpose: the way to trust its recovery before the night that needs it.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("kill-node")(kill_node)
    group.command("kill-rank")(kill_rank)
    group.command("stop-rank")(stop_rank)
    group.command("kill-head")(kill_head)
    group.command("kill-driver")(kill_driver)
    group.command("kill-supervisor")(kill_supervisor)
    for kind in ("nan", "exception", "sleep", "slow"):
        group.command(kind)(_numeric_command(kind))
    app.add_typer(group)


def kill_node(
    run: OptionalRun = "",
    node: Annotated[str, typer.Option("--node", help="Name of the node; default the last one.", show_default=False)] = "",
) -> None:
    """Power-cut a worker node: SIGKILL to its whole process group."""
    folder, nodes = _target(run)
    workers = [found for found in nodes.nodes() if found.name != "head" and nodes.is_alive(found.name)]
    chosen = next((found for found in workers if found.name == node), None) if node else (workers[-1] if workers else None)
    if chosen is None:
        raise _nothing(f"no living node {node or ''}".strip(), ", ".join(found.name for found in workers))
    _announce(folder, "kill-node", chosen.name)
    os.killpg(chosen.process.pid, signal.SIGKILL)
    note(f"killed {chosen.name} of {folder.name}")


def kill_head(run: OptionalRun = "") -> None:
    """Kill Ray's head node: the cluster is lost, and a new one must be built (L3)."""
    folder, nodes = _target(run)
    head = next((found for found in nodes.nodes() if found.name == "head" and nodes.is_alive("head")), None)
    if head is None:
        raise _nothing("no living head", "")
    _announce(folder, "kill-head", "head")
    os.killpg(head.process.pid, signal.SIGKILL)
    note(f"killed the head of {folder.name}")


def kill_rank(run: OptionalRun = "", rank: RankOption = 0) -> None:
    """SIGKILL one rank's process."""
    _signal_rank(run, rank, signal.SIGKILL, "kill-rank", "killed")


def stop_rank(run: OptionalRun = "", rank: RankOption = 0) -> None:
    """SIGSTOP one rank's process: it lives, answers nothing, and trains nothing."""
    _signal_rank(run, rank, signal.SIGSTOP, "stop-rank", "stopped")


def kill_driver(run: OptionalRun = "") -> None:
    """SIGKILL the driver of the running attempt: Ray's job fails, and the next attempt starts on the same nodes (L2)."""
    from pathlib import Path

    from samite.engines.local.processes import processes_of_run

    folder, _ = _target(run)
    for pid in processes_of_run(_uid(folder)):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"samite_workloads.entrypoint" in words and b"--ray" in words:
            _announce(folder, "kill-driver", str(pid))
            os.kill(pid, signal.SIGKILL)
            note(f"killed the driver (process {pid}) of {folder.name}")
            return
    raise _nothing("no living driver", "")


def kill_supervisor(run: OptionalRun = "") -> None:
    """SIGKILL the run's supervisor; the next samite command starts another, which adopts everything."""
    folder, _ = _target(run)
    if not folder.is_supervised():
        raise _nothing("no living supervisor", "")
    pid = int(folder.lock_file.read_text(encoding="utf-8"))
    _announce(folder, "kill-supervisor", str(pid))
    os.kill(pid, signal.SIGKILL)
    note(f"killed supervisor {pid} of {folder.name}")


def _numeric_command(kind: str) -> Any:
    texts = {
        "nan": "Make one gradient value of a rank NaN: every rank must refuse the step, and the run rolls back.",
        "exception": "Raise an exception inside a rank's step.",
        "sleep": "Block a rank inside its step, as a hung collective or file system does.",
        "slow": "Make a rank's steps take --factor times as long.",
    }

    def command(
        run: OptionalRun = "",
        rank: RankOption = 0,
        step: StepOption = -1,
        times: Annotated[int, typer.Option("--times", min=1, help="How many steps it strikes.")] = 1,
        seconds: Annotated[float, typer.Option("--seconds", min=0, help="For sleep: how long.")] = 600.0,
        factor: Annotated[float, typer.Option("--factor", min=1, help="For slow: how much slower.")] = 2.0,
    ) -> None:
        folder, _ = _target(run)
        fault = {"kind": kind, "rank": rank, "step": step, "times": times, "seconds": seconds, "factor": factor}
        _announce(folder, kind, f"rank {rank}")
        _add_fault(folder, fault)
        note(f"asked rank {rank} of {folder.name} for: {kind}")

    command.__doc__ = texts[kind]
    return command


def _add_fault(folder: Any, fault: dict[str, Any]) -> None:
    from samite.spec.attempt import write_atomically

    file = folder.control / "faults.json"
    faults = json.loads(file.read_text(encoding="utf-8"))["faults"] if file.exists() else []
    write_atomically(file, json.dumps({"faults": [*faults, {"id": f"chaos-{len(faults)}", **fault}]}) + "\n")


def _signal_rank(run: str, rank: int, number: signal.Signals, kind: str, done: str) -> None:
    from samite.engines.local.processes import processes_of_run
    from samite.spec.attempt import Heartbeat

    folder, _ = _target(run)
    file = folder.heartbeats / f"rank-{rank}.json"
    beat = Heartbeat.read(file) if file.exists() else None
    if beat is None or beat.pid not in processes_of_run(_uid(folder)):
        raise _nothing(f"no living rank {rank}", "")
    _announce(folder, kind, f"rank {rank}")
    os.kill(beat.pid, number)
    note(f"{done} rank {rank} (process {beat.pid} on {beat.node}) of {folder.name}")


def _target(run: str) -> tuple[Any, Any]:
    from samite.engines.local.client import LocalEngine
    from samite.engines.local.ray_nodes import RayNodes
    from samite.settings import Settings

    folder = LocalEngine(Settings.from_environment()).find(run)
    return folder, RayNodes(folder, run_uid=_uid(folder))


def _uid(folder: Any) -> str:
    return str((folder.read_json(folder.spec_file) or {}).get("uid", ""))


def _announce(folder: Any, kind: str, what: str) -> None:
    from samite.telemetry.events import EventLog

    try:
        actor = getpass.getuser()
    except (KeyError, OSError):
        actor = "unknown"
    EventLog(folder.events_file).emit("samite.chaos.injected", chaos_kind=f"{kind} {what}", actor=actor)


def _nothing(what: str, there: str) -> Exception:
    from samite.errors import NotFoundError

    return NotFoundError(f"{what} in this run right now" + (f"; there are: {there}" if there else "") + ". See: samite status")
