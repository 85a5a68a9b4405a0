"""Keys that may change while a client is in use: read from the files of a mounted Secret, for every request.

Kubernetes renews the files of a mounted Secret in pods that run; variables of a process never change. `SAMITE_STORAGE_KEYS` names the folder, with
files called like the variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, if there is one, `AWS_SESSION_TOKEN`.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.credentials import CredentialProvider

FOLDER_VARIABLE = "SAMITE_STORAGE_KEYS"
KEY, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"


def keys_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """The folder that the environment names, if it holds keys; None leaves the choice to boto3."""
    named = (os.environ if environment is None else environment).get(FOLDER_VARIABLE, "")
    folder = Path(named) if named else None
    return folder if folder is not None and (folder / KEY).is_file() and (folder / SECRET).is_file() else None


def folder_provider(folder: Path) -> "CredentialProvider":
    """A link for botocore's chain of credentials, whose keys look into `folder` each time a request is signed."""
    from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials

    class FolderKeys(Credentials):
        """The keys as the files have them now; those of the last look while they are being replaced."""

        def get_frozen_credentials(self) -> ReadOnlyCredentials:
            """One consistent pair: a Secret is replaced as a whole, by a link to another folder."""
            with suppress(OSError):
                self.access_key, self.secret_key, self.token = _keys(folder)
            return ReadOnlyCredentials(self.access_key, self.secret_key, self.token)

    class FolderProvider(CredentialProvider):
        """Always has keys."""

        METHOD = CANONICAL_NAME = "samite-storage-keys"

        def load(self) -> Credentials:
            """What signs requests."""
            key, secret, token = _keys(folder)
            return FolderKeys(key, secret, token, method=self.METHOD)

    return FolderProvider()


def _keys(folder: Path) -> tuple[str, str, str | None]:
    """Key, secret and token of one version: the link that the kubelet exchanges is resolved once."""
    data = folder / "..data"
    found = data.resolve(strict=True) if data.exists() else folder
    return _read(found, KEY), _read(found, SECRET), _read(found, TOKEN) or None


def _read(folder: Path, name: str) -> str:
    """Content of one file; empty if there is none and it may be missing."""
    file = folder / name
    if name == TOKEN and not file.is_file():
        return ""
    return file.read_text(encoding="utf-8").strip()
