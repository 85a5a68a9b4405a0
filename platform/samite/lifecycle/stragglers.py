"""Ranks that compute slower than the others for many steps. They are named; nothing is restarted for them."""

from samite.lifecycle.turn import Turn, live_of

_TRACKED = 8


def report_stragglers(turn: Turn) -> None:
    """Name a rank once its compute time has been over factor x median for so many steps. Needs ranks that report compute times."""
    policy = turn.plan.detection
    if not policy.straggler_reports:
        return
    timed = [rank for rank in turn.ranks.current if rank.compute_s is not None and rank.phase == "training"]
    if len(timed) < 2:
        if turn.memory.stragglers and not timed:
            return
        _keep(turn, ())
        return
    times = sorted(rank.compute_s or 0.0 for rank in timed)
    # The lower median: of two ranks, the slower one is compared with the faster one.
    median = times[(len(times) - 1) // 2]
    slow = [rank for rank in timed if (rank.compute_s or 0.0) > policy.straggler_factor * median]
    since = dict(turn.memory.stragglers)
    tracked = {rank.rank: since.get(rank.rank, rank.step) for rank in slow[:_TRACKED]}
    for rank in slow[:_TRACKED]:
        first = tracked[rank.rank]
        if first >= 0 and rank.step - first >= policy.straggler_steps:
            turn.emit(
                "samite.straggler.detected",
                rank=rank.rank,
                node=rank.node,
                value=(rank.compute_s or 0.0) / median if median > 0.0 else 0.0,
                threshold=policy.straggler_factor,
                window=policy.straggler_steps,
                step_index=live_of(turn).last_step,
            )
            tracked[rank.rank] = -1  # said once for this attempt
    _keep(turn, tuple(sorted(tracked.items())))


def _keep(turn: Turn, stragglers: tuple[tuple[int, int], ...]) -> None:
    if turn.memory.stragglers != stragglers:
        turn.remember(stragglers=stragglers)
