"""Which files of a run folder travel, and how: shared knowledge of the sending and the receiving side."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

EVENTS = "events.jsonl"
"""The one growing file that all ranks of a pod write together."""


def heartbeat_name(rank: int) -> str:
    """The rank's heartbeat."""
    return f"heartbeats/rank-{rank}.json"


def growing_names(submission_id: str, rank: int) -> tuple[str, ...]:
    """Files that only this rank appends to, in the order they are worth."""
    logs = f"attempts/{submission_id}/logs"
    return (f"metrics/rank-{rank}.jsonl", f"{logs}/rank-{rank}.log", f"{logs}/stacks-rank-{rank}.txt")


def once_patterns(submission_id: str, rank: int) -> tuple[str, ...]:
    """Patterns of small documents of this rank that are written once, or rarely. Rank 0 also tells the attempt's result and counts worker groups."""
    attempt = f"attempts/{submission_id}"
    own = (f"{attempt}/failures/incarnation-*-rank-{rank}.json", f"control/fired/*.rank-{rank}.*")
    return (f"{attempt}/result.json", f"{attempt}/incarnations/*", *own) if rank == 0 else own


def own_seeds(rank: int) -> tuple[str, ...]:
    """What a new process of this rank needs of its own past: where it was, and what it suffered on request."""
    return (heartbeat_name(rank), f"control/fired/*.rank-{rank}.*")


def common_seeds(submission_id: str) -> tuple[str, ...]:
    """What every new process needs: why ranks of the worker group before failed, and how many worker groups began."""
    return (f"attempts/{submission_id}/failures/incarnation-*.json", f"attempts/{submission_id}/incarnations/*")


def may_travel(name: str) -> bool:
    """Whether a path that somebody sent stays inside the places above."""
    parts = name.split("/")
    if ".." in parts or any(part.startswith(".") or not part for part in parts):
        return False
    return name == EVENTS or parts[0] in ("heartbeats", "metrics", "attempts") or name.startswith("control/fired/")


def folder_id(run_folder: Path) -> str:
    """A word that tells this folder from every other one, the same for all processes that see it."""
    file = run_folder / "bridge" / "folder-id"
    file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        fresh = file.with_name(f".folder-id.{os.getpid()}")
        fresh.write_text(secrets.token_hex(8), encoding="ascii")
        try:
            os.link(fresh, file)  # the name appears with its content, for the first who comes
        finally:
            fresh.unlink()
    return file.read_text(encoding="ascii")
