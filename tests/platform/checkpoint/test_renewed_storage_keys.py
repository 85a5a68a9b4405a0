"""Keys of a mounted Secret: what a request is signed with follows the files, as the kubelet exchanges them."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from samite.checkpoint.store.s3 import S3Options
from samite.checkpoint.store.s3_client import make_client
from samite.checkpoint.store.s3_keys import FOLDER_VARIABLE, keys_folder

OPTIONS = S3Options(endpoint="http://127.0.0.1:9", region="us-east-1", insecure=True)


def mount(folder: Path, version: str, **keys: str) -> None:
    """As the kubelet does it: a folder for each version, one link that is exchanged at once, and links of the names through it."""
    data = folder / version
    data.mkdir(parents=True)
    for name, value in keys.items():
        (data / name).write_text(value)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    fresh = folder / "..new"
    fresh.symlink_to(version)
    fresh.rename(folder / "..data")


def signer(client: object) -> str:
    """The key that a request is signed with now."""
    address = client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})  # type: ignore[attr-defined]
    query = parse_qs(urlsplit(address).query)
    return (query.get("AWSAccessKeyId") or query["X-Amz-Credential"])[0].partition("/")[0]


def test_a_client_signs_with_the_keys_that_the_files_have_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mount(tmp_path, "one", AWS_ACCESS_KEY_ID="old", AWS_SECRET_ACCESS_KEY="a")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-process")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    client = make_client(OPTIONS)
    assert signer(client) == "old"
    mount(tmp_path, "two", AWS_ACCESS_KEY_ID="new", AWS_SECRET_ACCESS_KEY="b")
    assert signer(client) == "new"


def test_keys_that_are_gone_for_a_moment_are_those_of_the_last_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("plain\n")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("a\n")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    client = make_client(OPTIONS)
    (tmp_path / "AWS_ACCESS_KEY_ID").unlink()
    assert signer(client) == "plain"


def test_keys_that_are_given_come_first_and_a_folder_without_keys_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert keys_folder() is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-process")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert signer(make_client(OPTIONS)) == "of-the-process"
    mount(tmp_path, "one", AWS_ACCESS_KEY_ID="mounted", AWS_SECRET_ACCESS_KEY="a")
    given = S3Options(endpoint=OPTIONS.endpoint, region="us-east-1", insecure=True, access_key="given", secret_key="y")
    assert signer(make_client(given)) == "given"
