"""Create-once on file systems without hard links, full and read-only disks, leftovers of dead writers."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from samite.checkpoint.store import FileStore, StorageFullError, open_store
from samite.checkpoint.store.file import NO_LINKS
from samite.checkpoint.store.probe import probe
from samite.errors import NotAllowedError, SamiteError, TemporaryError, UsageError


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store", durable=False)


def refuse_links(monkeypatch, number: int) -> None:
    def link(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("number", sorted(NO_LINKS), ids=lambda number: errno.errorcode[number])
def test_every_way_to_refuse_links_still_gives_create_once(store, monkeypatch, number: int):
    refuse_links(monkeypatch, number)
    report = probe(store)
    assert report.fit
    assert "claim files" in report.notes[0]
    won = []
    threads = [threading.Thread(target=lambda text=f"{n}": won.append(store.put_if_absent("k/MANIFEST", text.encode()))) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(won) == 1


def test_another_error_of_link_is_not_mistaken_for_a_missing_feature(store, monkeypatch):
    refuse_links(monkeypatch, errno.EIO)
    with pytest.raises(TemporaryError, match="Input/output error"):
        store.put_if_absent("k", b"x")
    assert store.links


def test_a_link_whose_answer_was_lost_counts_as_made(store, monkeypatch):
    real = os.link

    def link(source, target, **options):
        real(source, target, **options)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", link)
    assert store.put_if_absent("k", b"mine")
    assert store.get("k") == b"mine"


def test_a_writer_that_died_between_claim_and_rename_leaves_no_object_and_no_second_winner(store, monkeypatch):
    store.links = False
    (store.folder / "k").mkdir(parents=True)
    (store.folder / "k" / ".claim-MANIFEST").touch()
    assert not store.put_if_absent("k/MANIFEST", b"x")
    assert store.head("k/MANIFEST") is None
    assert list(store.children("k/")) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so_and_replaces_nothing(store, monkeypatch, number: int):
    store.put("LATEST", b"old")

    def fsync(_descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    full = FileStore(store.folder, durable=True)
    for call in (lambda: full.put("LATEST", b"new"), lambda: full.put_if_absent("MANIFEST", b"new")):
        with pytest.raises(StorageFullError, match="nothing was replaced"):
            call()
    monkeypatch.undo()
    assert store.get("LATEST") == b"old"
    assert store.head("MANIFEST") is None
    assert [path.name for path in store.folder.iterdir()] == ["LATEST"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_disk_is_found_by_the_probe(store, monkeypatch, number: int):
    def mkdir(self, *_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    report = probe(store)
    assert not report.fit
    with pytest.raises(NotAllowedError, match=r"choose another checkpoint\.uri"):
        report.raise_if_unfit()


def test_a_store_that_overwrites_is_refused_by_the_probe(store):
    class Careless(FileStore):
        def put_if_absent(self, key, data):
            self.put(key, data)
            return True

    report = probe(Careless(store.folder))
    assert "two attempts could both commit" in str(report.problems[0])


def test_all_missing_permissions_are_named_at_once(store):
    from samite.checkpoint.store.faulty import Action, Fault, FaultyStore

    report = probe(FaultyStore(store, [Fault("children", "*", Action.FORBIDDEN), Fault("delete", "*", Action.FORBIDDEN)]))
    with pytest.raises(NotAllowedError, match=r"(?s)delete.*children|children.*delete"):
        report.raise_if_unfit()


def test_temporary_files_of_dead_writers_are_swept_and_never_listed(store):
    store.put("ckpt/1/data/0.bin", b"x")
    leftover = store.folder / "ckpt/1/data/.tmp-1-aa"
    leftover.write_bytes(b"half")
    assert [info.key for info in store.list("")] == ["ckpt/1/data/0.bin"]
    assert store.sweep(older_than_s=3600) == 0
    assert store.sweep(older_than_s=0) == 1
    assert not leftover.exists()


def test_deleting_the_last_object_removes_its_folders_but_never_the_root(store):
    store.links = False
    store.put_if_absent("ckpt/1/MANIFEST", b"x")
    store.put("keep", b"x")
    store.delete(["ckpt/1/MANIFEST", "keep"])
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize("uri", ["relative/path", "file://relative", "/", "/a/../b", "://x", "s3://"])
def test_a_uri_that_makes_no_sense_is_refused_with_what_was_wanted(uri: str):
    with pytest.raises(UsageError, match=r"wanted|not allowed|name a folder|cannot hold"):
        open_store(uri)


@pytest.mark.parametrize(("uri", "wanted"), [("/a//b/", "file:///a/b"), ("file:///a/b//", "file:///a/b"), ("/a b/ü", "file:///a b/ü")])
def test_paths_have_one_canonical_uri(uri: str, wanted: str):
    assert open_store(uri).uri == wanted
    assert open_store(wanted).uri == wanted


def test_writing_and_deleting_in_the_same_folder_at_once_disturb_nobody(store):
    store, stop, errors = FileStore(store.folder), threading.Event(), []

    def delete() -> None:
        while not stop.is_set():
            store.delete(["a/b/other"])
            time.sleep(0.0005)

    def write() -> None:
        try:
            for number in range(100):
                store.put("a/b/other", b"x")
                store.put_if_absent(f"a/b/{number}", b"y")
                store.delete([f"a/b/{number}"])
        except (SamiteError, OSError) as error:
            errors.append(error)

    threads = [threading.Thread(target=delete), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    threads[1].join()
    stop.set()
    threads[0].join()
    assert errors == []
