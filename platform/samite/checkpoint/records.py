"""Records of attempts beside their checkpoints: what the CLI reads when the pods that wrote it are gone.

    records/<submission>/attempt.json  result.json  failures/<report>.json     whole documents, replaced
    records/<submission>/events/events.<part>.jsonl                            growing files in numbered parts,
    records/<submission>/metrics/rank-<r>.<part>.jsonl                         in order the file as it was written
    records/<submission>/logs/rank-<r>.<part>.log  driver.<part>.log
    records/operator/events/<n>.jsonl                                          written by the operator

Objects cannot be appended to: the last part of a growing file is replaced until it is full, then the next one begins. Written by
`samite_workloads.bridge.mirror`; a file is named here as in the run folder (`metrics/rank-0.jsonl`, `logs/driver.log`).
"""

import re
from collections.abc import Iterator

from samite.checkpoint.store import Store

RECORDS = "records/"
PART_BYTES = 512 * 1024
"""A part is full at this size; a line longer than that makes a longer part."""

_PART = re.compile(r"(.+)\.(\d{6,})(\.[a-z]+)")


def record_key(submission_id: str, name: str) -> str:
    """Key of a whole document, such as `result.json`."""
    return f"{RECORDS}{submission_id}/{name}"


def part_key(submission_id: str, name: str, part: int) -> str:
    """Key of part `part`, from 0, of the growing file `name`."""
    stem, dot, suffix = name.rpartition(".")
    return record_key(submission_id, f"{stem}.{part:06d}{dot}{suffix}")


def recorded_submissions(store: Store) -> list[str]:
    """Submissions that left records, by name. The operator's own records are not among them."""
    names = [name.rstrip("/") for name in store.children(RECORDS) if name.endswith("/")]
    return [name for name in names if name != "operator"]


def recorded_files(store: Store, submission_id: str) -> dict[str, list[str]]:
    """Every file that was recorded of a submission, by its name in the run folder, with the keys that together are its content, in order."""
    prefix = record_key(submission_id, "")
    found: dict[str, list[tuple[int, str]]] = {}
    for info in store.list(prefix):
        name, number = info.key[len(prefix) :], 0
        match = _PART.fullmatch(name)
        if match:
            name, number = match[1] + match[3], int(match[2])
        found.setdefault(name, []).append((number, info.key))
    return {name: [key for _, key in sorted(keys)] for name, keys in sorted(found.items())}


def read_record(store: Store, keys: list[str]) -> Iterator[bytes]:
    """The content behind the keys of one file, part by part."""
    for key in keys:
        yield store.get(key)
