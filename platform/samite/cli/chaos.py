"""`samite chaos`: break a run on purpose and see that it recovers. Every fault is announced in the run's events."""

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
        help="Break a run on purpose: the way to trust its recovery before the night that needs it.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("kill-node")(kill_node)
    group.command("kill-rank")(kill_rank)
    group.command("stop-rank")(stop_rank)
    group.command("kill-head")(kill_head)
    group.command("kill-driver")(kill_driver)
    group.command("kill-supervisor")(kill_supervisor)
    for kind in ("nan", "spike", "exception", "sleep", "slow"):
        group.command(kind)(_fault_command(kind))
    app.add_typer(group)


def kill_node(
    run: OptionalRun = "",
    node: Annotated[str, typer.Option("--node", help="Name of the node; default the last one.", show_default=False)] = "",
) -> None:
    """Lose a worker node: SIGKILL to its process group, or its pod deleted without grace."""
    _strike(run, "kill-node", node=node)


def kill_head(run: OptionalRun = "") -> None:
    """Kill Ray's head node: the cluster is lost, and a new one must be built (L3)."""
    _strike(run, "kill-head")


def kill_rank(run: OptionalRun = "", rank: RankOption = 0) -> None:
    """SIGKILL one rank's process."""
    _strike(run, "kill-rank", rank=rank)


def stop_rank(run: OptionalRun = "", rank: RankOption = 0) -> None:
    """SIGSTOP one rank's process: it lives, answers nothing, and trains nothing."""
    _strike(run, "stop-rank", rank=rank)


def kill_driver(run: OptionalRun = "") -> None:
    """SIGKILL the driver of the running attempt: Ray's job fails, and the next attempt starts on the same nodes (L2). Local runs."""
    _strike(run, "kill-driver")


def kill_supervisor(run: OptionalRun = "") -> None:
    """SIGKILL the run's supervisor; the next samite command starts another, which adopts everything. Local runs."""
    _strike(run, "kill-supervisor")


def _fault_command(kind: str) -> Any:
    texts = {
        "nan": "Make one gradient value of a rank NaN: every rank must refuse the step, and the run rolls back.",
        "spike": "Make a rank's gradient --factor times as large in --times steps: its norm leaves its band.",
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
        factor: Annotated[float, typer.Option("--factor", min=1, help="For slow and spike: how much slower, how much larger.")] = 2.0,
    ) -> None:
        _strike(run, kind, rank=rank, step=step, times=times, seconds=seconds, factor=factor)

    command.__doc__ = texts[kind]
    return command


def _strike(run: str, kind: str, **details: Any) -> None:
    from samite.cli.place import find
    from samite.engines.base import Blow

    engine, handle = find(run)
    note(engine.strike(handle, Blow(kind=kind, **details)))
