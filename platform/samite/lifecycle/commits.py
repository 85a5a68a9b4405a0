"""What committed checkpoints tell: trust comes back, cycles without progress end."""

from samite.lifecycle import blame, budgets
from samite.lifecycle.turn import Turn


def note_commits(turn: Turn) -> None:
    """Count new commits, by the storage's listing and by what ranks say; reset what commits reset."""
    memory, listing = turn.memory, turn.observed.checkpoints
    newest_id, newest_step, at_s = memory.newest_commit, memory.newest_commit_step, memory.newest_commit_at_s
    new = 0
    if listing is not None:
        for item in listing.recent:
            committed_at = turn.now_s - listing.age_s - item.age_s
            if item.step > newest_step or (item.checkpoint_id != newest_id and at_s is not None and committed_at > at_s + 1.0):
                newest_id, newest_step, at_s, new = item.checkpoint_id, item.step, committed_at, new + 1
    lead = turn.ranks.lead
    if lead is not None and lead.save_s > 0.0 and (lead.save_s, lead.save_stall_s) != memory.newest_save:
        turn.remember(newest_save=(lead.save_s, lead.save_stall_s))
    if lead is not None and lead.checkpoint_step > newest_step:
        newest_id, newest_step, at_s, new = "", lead.checkpoint_step, turn.now_s, new + 1
    elif newest_step >= 0 and not newest_id and listing is not None:
        found = next((item for item in reversed(listing.recent) if item.step == newest_step), None)
        newest_id = found.checkpoint_id if found is not None else ""
    if not new:
        if newest_id != memory.newest_commit:
            turn.remember(newest_commit=newest_id)
        return
    commits = memory.commits + new
    since = commits - memory.commits_at_failure
    turn.remember(
        commits=commits,
        newest_commit=newest_id,
        newest_commit_step=newest_step,
        newest_commit_at_s=at_s,
        cycles_without_commit=0,
        backoff_exponent=0 if since >= turn.plan.restart.backoff_reset_commits else memory.backoff_exponent,
        spent=budgets.after_commits(turn.plan.restart, memory.spent, since),
        blame=blame.pruned(memory.blame, turn.plan.nodes, turn.now_s),
    )
