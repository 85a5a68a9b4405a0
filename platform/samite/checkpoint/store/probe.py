"""Can this storage hold checkpoints? Asked in the real prefix before training starts, not at the first commit an hour later.

Puts, reads, creates once (also eight at a time), swaps, lists and deletes a few small objects, and names exactly what is missing.
"""

import contextlib
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from samite.checkpoint.store.base import MissingKeyError, Store
from samite.errors import ConflictError, NotAllowedError, SamiteError, TemporaryError

_RACERS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeReport:
    """What was found. `notes` are worth knowing but no obstacle."""

    uri: str
    problems: tuple[SamiteError, ...]
    notes: tuple[str, ...] = ()

    @property
    def fit(self) -> bool:
        """Whether checkpoints can be kept there."""
        return not self.problems

    def raise_if_unfit(self) -> None:
        """Raise all problems as one error: NotAllowedError if permissions are missing, TemporaryError if it only did not answer."""
        if not self.problems:
            return
        if len(self.problems) == 1:
            raise self.problems[0]
        text = f"{self.uri} cannot hold checkpoints:" + "".join(f"\n  - {problem}" for problem in self.problems)
        for kind in (NotAllowedError, ConflictError, TemporaryError):
            if any(isinstance(problem, kind) for problem in self.problems):
                raise kind(text)
        raise SamiteError(text)


def probe(store: Store) -> ProbeReport:
    """Try everything the format needs. Leaves nothing behind where deleting is allowed. Never raises what storage raises: it reports it."""
    prefix = f"probe/{secrets.token_hex(6)}/"
    problems: list[SamiteError] = []
    for attempt in (_try_put_and_read, _try_create_once, _try_swap, _try_list, _try_delete):
        try:
            attempt(store, prefix)
        except SamiteError as error:
            if str(error) not in map(str, problems):
                problems.append(error)
            if isinstance(error, TemporaryError):
                break  # it does not answer: the other questions would only wait as long again
    return ProbeReport(uri=store.uri, problems=tuple(problems), notes=_notes(store))


def _try_put_and_read(store: Store, prefix: str) -> None:
    key, content = f"{prefix}object", secrets.token_bytes(64)
    with contextlib.suppress(MissingKeyError):  # a refusal here would later be mistaken for "no checkpoint"
        store.get(key)
    store.put(key, content)
    if store.get(key) != content:
        raise ConflictError(f"{store.uri}/{key}: reading does not give back what was just written; this storage is not consistent")


def _try_create_once(store: Store, prefix: str) -> None:
    key = f"{prefix}once"
    contents = [secrets.token_bytes(32) for _ in range(_RACERS)]
    with ThreadPoolExecutor(_RACERS, thread_name_prefix="samite-probe") as pool:
        won = list(pool.map(lambda content: store.put_if_absent(key, content), contents))
    again = store.put_if_absent(key, b"a later writer")
    kept = store.get(key)
    if sum(won) != 1 or again or kept != contents[won.index(True)]:
        raise ConflictError(
            f"{store.uri}: creates an object although it exists ({sum(won)} of {_RACERS} competing writers were told they won"
            f"{', and a later one' if again else ''}), so two attempts could both commit. "
            "Conditional writes (If-None-Match) are missing or ignored here; use another bucket or service"
        )
    store.delete([key])
    if not store.put_if_absent(key, contents[0]):
        raise ConflictError(f"{store.uri}/{key}: cannot be created again after its deletion; check the bucket's versioning and object lock")


def _try_swap(store: Store, prefix: str) -> None:
    key = f"{prefix}swap"
    if not store.compare_and_swap(key, b"first", None):
        raise ConflictError(f"{store.uri}/{key}: a conditional write to a new key was refused")
    found = store.head(key)
    if found is None or store.compare_and_swap(key, b"second", "no-such-etag"):
        raise ConflictError(f"{store.uri}/{key}: was replaced although it had changed (If-Match is ignored here)")
    if not store.compare_and_swap(key, b"second", found.etag):
        raise ConflictError(f"{store.uri}/{key}: a conditional replacement (If-Match) was refused although nothing had changed")


def _try_list(store: Store, prefix: str) -> None:
    names = set(store.children(prefix))
    listed = {info.key for info in store.list(prefix)}
    if "object" not in names or f"{prefix}object" not in listed:
        raise ConflictError(
            f"{store.uri}/{prefix}: a listing does not show an object that was just written; this storage is not consistent"
        )


def _try_delete(store: Store, prefix: str) -> None:
    store.delete([f"{prefix}{name}" for name in ("object", "once", "swap")])
    if store.head(f"{prefix}object") is not None:
        raise ConflictError(f"{store.uri}/{prefix}object: is still there after its deletion; check retention and object lock")


def _notes(store: Store) -> tuple[str, ...]:
    notes = []
    if not getattr(store, "links", True):
        notes.append("no hard links here: commits are decided by claim files")
    versioning = getattr(store, "versioning", None)
    if callable(versioning) and (status := versioning()):
        notes.append(f"versioning of this bucket is {status}: deleted checkpoints keep using space until their old versions expire")
    return tuple(notes)
