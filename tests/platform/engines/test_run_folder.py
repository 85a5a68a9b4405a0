"""The run folder: locks, atomic documents, requests."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samite.engines.local.folder import RunFolder, list_runs, lock_is_held
from samite.engines.local.requests import ask, read_requests, read_wishes, wish
from samite.errors import ConflictError, NotFoundError
from samite.lifecycle import RequestKind


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "runs" / "demo")
    made.create()
    made.write_json(made.spec_file, {"uid": "u"})
    return made


def test_a_second_supervisor_is_refused_and_told_who_holds_the_lock(folder: RunFolder):
    program = (
        "import sys, time; from pathlib import Path; from samite.engines.local.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).supervised():\n    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(folder.path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert folder.is_supervised()
        with pytest.raises(ConflictError, match=f"process {holder.pid}"), folder.supervised(patience_s=0.2):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert not folder.is_supervised()
    with folder.supervised():
        assert lock_is_held(folder.lock_file)


def test_a_probe_of_the_lock_for_an_instant_does_not_keep_a_supervisor_out(folder: RunFolder):
    folder.lock_file.touch()
    for _ in range(20):
        lock_is_held(folder.lock_file)
        with folder.supervised(patience_s=1.0):
            assert folder.is_supervised()


def test_a_missing_run_is_named_with_those_that_exist(folder: RunFolder):
    with pytest.raises(NotFoundError, match="Known runs: demo"):
        RunFolder(folder.path.with_name("dmeo")).require()


def test_a_half_made_folder_is_not_a_run(folder: RunFolder):
    (folder.path.parent / ".new.123.new").mkdir()
    (folder.path.parent / "empty").mkdir()
    assert [run.name for run in list_runs(folder.path.parent)] == ["demo"]


def test_a_damaged_document_is_named(folder: RunFolder):
    folder.status_file.write_text("{half", encoding="utf-8")
    with pytest.raises(ValueError, match=r"status\.json is not valid JSON"):
        folder.read_json(folder.status_file)


def test_requests_come_in_the_order_they_were_left_and_go_when_answered(folder: RunFolder):
    first = ask(folder, RequestKind.RESUME, by="ann")
    second = ask(folder, RequestKind.SKIP, windows=((3, 9),))
    assert [request.request_id for request in read_requests(folder)] == [first, second]
    assert read_requests(folder, handled=frozenset({first}))[0].windows == ((3, 9),)
    assert [request.request_id for request in read_requests(folder)] == [second]


def test_a_cancel_cannot_be_taken_back_but_a_suspend_can(folder: RunFolder):
    wish(folder, suspend=True, cancel=True)
    wish(folder, suspend=False, cancel=False)
    assert (read_wishes(folder).suspend, read_wishes(folder).cancel) == (False, True)


def test_documents_are_strict_json_whatever_the_loss_is(folder: RunFolder):
    folder.write_json(folder.status_file, {"progress": {"loss": float("nan"), "step": 3}, "rates": [float("inf"), 1.0]})
    assert "NaN" not in folder.status_file.read_text()
    assert folder.read_json(folder.status_file) == {"progress": {"loss": None, "step": 3}, "rates": [None, 1.0]}


def test_writing_a_document_leaves_no_temporary_file(folder: RunFolder):
    folder.write_json(folder.status_file, {"phase": "Running"})
    assert [entry for entry in folder.path.iterdir() if entry.name.startswith(".")] == []


def test_the_guard_gives_up_only_when_the_beat_stands_still_and_nobody_holds_the_lock(folder: RunFolder):
    from samite.engines.local.guard import SupervisorWatch

    folder.beat_file.touch()
    start_s = time.monotonic()
    with folder.supervised():
        watch = SupervisorWatch(folder.path, grace_s=10)
        assert not watch.supervisor_is_gone(start_s)
        assert not watch.supervisor_is_gone(start_s + 100), "a stopped supervisor still holds its lock"
    assert watch.supervisor_is_gone(start_s + 100)
    os.utime(folder.beat_file, (1, 1))
    assert not watch.supervisor_is_gone(start_s + 200), "any change counts, whatever the clock says"
    assert watch.supervisor_is_gone(start_s + 211)
