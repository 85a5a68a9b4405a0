"""The folder `control/` as a copy of somebody else's documents: same names, same contents, and nothing rewritten that is the same already.

The trainer takes a request for new when its file changes, so an unchanged document must keep its time.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from samite.spec.attempt import write_atomically
from samite.telemetry import jsonlines

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\.json")
_LARGEST_BYTES = 65536


class ControlFiles:
    """`control/` of one run folder."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "control"

    def read(self) -> dict[str, str]:
        """Every document as text, by file name."""
        found = {}
        with suppress(FileNotFoundError):
            for file in sorted(self.folder.iterdir()):
                if _NAME.fullmatch(file.name) and file.is_file():
                    with suppress(OSError, UnicodeDecodeError):
                        found[file.name] = file.read_text(encoding="utf-8")
        return found

    def apply(self, documents: Mapping[str, str]) -> None:
        """Make the folder hold exactly these. Names that are no plain `*.json` and documents of more than 64 KiB are left out."""
        self.folder.mkdir(parents=True, exist_ok=True)
        wanted = {name: text for name, text in documents.items() if _NAME.fullmatch(name) and len(text) <= _LARGEST_BYTES}
        have = self.read()
        for name in have.keys() - wanted.keys():
            (self.folder / name).unlink(missing_ok=True)
        for name, text in wanted.items():
            if have.get(name) != text:
                write_atomically(self.folder / name, text)

    def document(self, name: str) -> dict[str, Any]:
        """One document; empty if there is none that makes sense."""
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def digest(documents: Mapping[str, str]) -> str:
    """Equal exactly when the documents are."""
    return hashlib.sha256(json.dumps(sorted(documents.items())).encode()).hexdigest()[:16]


def texts(annotation: str) -> dict[str, str] | None:
    """The documents of the Lease's `samite.dev/control` as texts of files; None if it is damaged: then nothing is known, not nothing wanted."""
    try:
        found = json.loads(annotation or "{}")
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return {str(name): jsonlines.encode(document).decode("ascii") for name, document in found.items() if isinstance(document, dict)}
