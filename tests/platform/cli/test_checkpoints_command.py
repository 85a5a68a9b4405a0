"""`samite checkpoints`: lists, verifies with exit 12, prunes only what may go, and prints every text as it is."""

import json
import secrets
from pathlib import Path
from types import SimpleNamespace

import pytest

from samite.checkpoint import Catalog, State, open_store
from samite.checkpoint.checksum import crc64
from samite.checkpoint.commit import CommitRequest, build_manifest, commit
from samite.checkpoint.fence import open_session
from samite.checkpoint.index import Chunk, DataObject, RankIndex, TensorMeta
from samite.checkpoint.layout import checkpoint_key, data_name, index_name
from samite.cli.app import run
from samite.spec import load_run


@pytest.fixture
def samite(capsys, monkeypatch):
    """Run one command in this process."""
    monkeypatch.setenv("SAMITE_HOME", "/nonexistent/samite")

    def call(*arguments: str, code: int = 0) -> SimpleNamespace:
        capsys.readouterr()
        found = run(list(arguments))
        out, err = capsys.readouterr()
        assert found == code, err
        return SimpleNamespace(stdout=out, stderr=err)

    return call


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, list[str]]:
    """A folder with a hostile name, and three checkpoints of a stage with a hostile name."""
    uri = str(tmp_path / "[v1] [/red]")
    store = open_store(uri)
    fence = open_session(store, run_uid="run", epoch=1, nonce="n")
    ids = []
    for step in (10, 20, 30):
        one, data = f"{step:08d}-1-{secrets.token_hex(4)}", bytes(range(240))
        store.put(checkpoint_key(one, data_name(0, 0)), data)
        index = RankIndex(
            checkpoint_id=one,
            rank=0,
            tensors=(TensorMeta("w[0]", "float32", (60,)),),
            objects=(DataObject(data_name(0, 0), 240, crc64(data)),),
            chunks=(Chunk(0, ((0, 60),), 0, 240, 0, 0, crc64(data), (crc64(data),)),),
        )
        store.put(checkpoint_key(one, index_name(0)), index.to_bytes())
        request = CommitRequest(
            checkpoint_id=one,
            step=step,
            world_size=1,
            session=fence.session,
            run_uid="run",
            created_unix_s=1.0,
            extra={"stage": "[bold]a[/bold]"},
        )
        commit(store, build_manifest(store, request))
        ids.append(one)
    return uri, ids


def damage(uri: str, checkpoint_id: str) -> None:
    path = Path(uri) / "ckpt" / checkpoint_id / "data" / "00000-0.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")


def test_ls_shows_the_newest_first_and_every_text_as_it_is(samite, place):
    uri, ids = place
    shown = samite("checkpoints", "ls", uri).stdout.splitlines()
    assert [line.split()[1] for line in shown[1:]] == ids[::-1]
    assert all("[bold]a[/bold]" in line and "committed" in line for line in shown[1:])
    assert samite("checkpoints", "ls", uri, "-o", "name").stdout.split() == ids[::-1]
    document = json.loads(samite("checkpoints", "ls", uri, "-o", "json").stdout)
    assert (document["kind"], document["items"][0]["step"], document["items"][0]["bytes"]) == ("CheckpointList", 30, 240)


def test_an_empty_place_is_not_an_error_and_says_where_it_looked(samite, tmp_path: Path):
    done = samite("checkpoints", "ls", str(tmp_path / "[nothing]"))
    assert done.stdout == ""
    assert "[nothing]" in done.stderr


def test_show_tells_manifest_and_tensors(samite, place):
    uri, ids = place
    document = json.loads(samite("checkpoints", "show", uri, "20", "--tensors", "-o", "json").stdout)
    assert (document["id"], document["run"], document["tensors"]) == (
        ids[1], "run", {"w[0]": {"dtype": "float32", "shape": [60], "chunks": 1}},
    )  # fmt: skip
    assert f"id: {ids[2]}" in samite("checkpoints", "show", uri).stdout


def test_verify_finds_a_flipped_byte_only_when_it_reads_every_byte_and_ends_with_12(samite, place):
    uri, ids = place
    assert samite("checkpoints", "verify", uri, "--full").stdout.count(" ok") == 3
    damage(uri, ids[2])
    samite("checkpoints", "verify", uri, "--quick")
    done = samite("checkpoints", "verify", uri, "--full", "-o", "wide", code=12)
    assert ids[2] in done.stderr
    assert "[v1] [/red]" in done.stderr
    assert done.stdout.count("DAMAGED") == 1
    assert Catalog(open_store(uri)).entry(ids[2]).state is State.VERIFIED  # looking changes nothing
    samite("checkpoints", "verify", uri, "30", "--full", "--quarantine", code=12)
    assert Catalog(open_store(uri)).entry(ids[2]).state is State.QUARANTINED


def test_a_quarantine_is_lifted_only_by_a_full_look_that_finds_nothing(samite, place):
    uri, ids = place
    Catalog(open_store(uri)).quarantine(ids[0], "by mistake")
    samite("checkpoints", "verify", uri, "10", "--lift-quarantine", code=2)
    assert "lifted" in samite("checkpoints", "verify", uri, "10", "--full", "--lift-quarantine").stderr
    assert Catalog(open_store(uri)).entry(ids[0]).usable


def test_prune_shows_a_plan_and_deletes_only_with_yes(samite, place):
    uri, ids = place
    samite("checkpoints", "pin", uri, "10", "--reason", "[keep]")
    done = samite("checkpoints", "prune", uri, "--keep-last", "1")
    assert "1 would be deleted; add --yes" in done.stderr
    assert len(Catalog(open_store(uri)).list()) == 3
    samite("checkpoints", "prune", uri, "--keep-last", "1", "--yes")
    assert [entry.checkpoint_id for entry in Catalog(open_store(uri)).list()] == [ids[2], ids[0]]
    samite("checkpoints", "unpin", uri, ids[0])
    samite("checkpoints", "prune", uri, "--keep-last", "1", "--yes")
    assert [entry.checkpoint_id for entry in Catalog(open_store(uri)).list()] == [ids[2]]


def test_prune_never_deletes_the_newest_one_that_is_whole(samite, place):
    uri, ids = place
    (Path(uri) / "ckpt" / ids[2] / "data" / "00000-0.bin").unlink()
    samite("checkpoints", "prune", uri, "--keep-last", "1", "--quarantined", "--yes")
    assert [entry.checkpoint_id for entry in Catalog(open_store(uri)).list()] == [ids[1]]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "{uri}", "99"), 5, "steps here: 30, 20, 10"),
        (("show", "{uri}", "00000099-1-00000000"), 5, "newest here"),
        (("show", "{uri}", "[/x]"), 2, "'[/x]': wanted a checkpoint id"),
        (("ls", "s3://bucket?x=1/y"), 2, "a query"),
        (("ls", "relative://"), 2, "wanted an absolute path"),
    ],
)
def test_mistakes_are_answered_with_what_would_be_right(samite, place, arguments, code, said):
    done = samite("checkpoints", *(argument.replace("{uri}", place[0]) for argument in arguments), code=code)
    assert said in done.stderr


def test_a_run_is_named_by_its_name_and_its_checkpoints_are_in_its_folder(samite, monkeypatch, tmp_path: Path):
    home, example = tmp_path / "home", Path(__file__).parents[3] / "examples" / "quickstart" / "run.yaml"
    loaded = load_run(example)
    folder = home / "runs" / "demo"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"uid": "u", "run": loaded.run.to_document()}))
    (folder / "status.json").write_text(json.dumps({"name": "demo", "phase": "Succeeded", "settled": True}))
    monkeypatch.setenv("SAMITE_HOME", str(home))
    assert f"No checkpoints at file://{folder}/checkpoints." in samite("checkpoints", "ls", "demo").stderr
    assert "no run" in samite("checkpoints", "ls", "nothing", code=5).stderr.lower()
