"""What people ask of a run: wishes, which are states (suspend, cancel), and requests, which are answered once.

Both are files in the run folder, so that asking needs no living supervisor: the next one reads them.
"""

from dataclasses import asdict, dataclass, replace

from samite.engines.local.folder import RunFolder
from samite.lifecycle import Request, RequestKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What is wanted of the run as a whole."""

    suspend: bool = False
    cancel: bool = False


def read_wishes(folder: RunFolder) -> Wishes:
    """The wishes that were last written."""
    return Wishes(**(folder.read_json(folder.path / "wishes.json") or {}))


def wish(folder: RunFolder, *, suspend: bool | None = None, cancel: bool | None = None) -> Wishes:
    """Change wishes. A cancelled run cannot be un-cancelled: `cancel` only ever becomes true."""
    now = read_wishes(folder)
    now = replace(now, suspend=now.suspend if suspend is None else suspend, cancel=now.cancel or bool(cancel))
    folder.write_json(folder.path / "wishes.json", asdict(now))
    return now


def ask(folder: RunFolder, kind: RequestKind, *, argument: str = "", by: str = "", windows: tuple[tuple[int, int], ...] = ()) -> str:
    """Leave one request; returns its id."""
    return folder.leave_request(kind.value, argument=argument, by=by, windows=windows).stem


def read_requests(folder: RunFolder, *, handled: frozenset[str] = frozenset()) -> tuple[Request, ...]:
    """Requests that are not answered yet, oldest first. Answered ones are removed."""
    found = []
    for file, document in folder.pending_requests():
        if file.stem in handled:
            file.unlink(missing_ok=True)
            continue
        windows = tuple((int(begin), int(end)) for begin, end in document.get("windows", ()))
        kind = RequestKind(document["verb"])
        found.append(
            Request(request_id=file.stem, kind=kind, argument=document.get("argument", ""), by=document.get("by", ""), windows=windows)
        )
    return tuple(found)
