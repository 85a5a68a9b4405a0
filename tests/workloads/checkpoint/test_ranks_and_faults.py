"""Several ranks, and one of them or its storage fails: everybody is told in time, nobody hangs, the next save works."""

from pathlib import Path

import pytest

from samite.checkpoint import Catalog, State, open_store


@pytest.mark.parametrize(("action", "wanted"), [("full", "no space left"), ("forbidden", "403")])
def test_one_rank_that_cannot_write_fails_the_save_on_all_ranks_with_its_reason_and_training_goes_on(
    ranks, tmp_path: Path, action: str, wanted: str
):
    for rank, one in enumerate(ranks("one_rank_cannot_write", 3, uri=str(tmp_path / "store"), action=action)):
        assert wanted in one["reason"], rank
        assert rank == 2 or "rank 2" in one["reason"]
        assert one["seconds"] < 10
        assert one["next"] == [6]


def test_a_rank_whose_storage_answers_503_for_ever_costs_a_deadline_and_never_a_hang(ranks, tmp_path: Path):
    for rank, one in enumerate(ranks("one_rank_cannot_write", 3, uri=str(tmp_path / "store"), action="unavailable")):
        assert rank == 2 or "rank 2" in one["reason"]
        assert one["seconds"] < 10
        assert one["steps"] > 20
        assert one["next"] == [6]


def test_survivors_of_a_killed_rank_are_told_and_no_partial_checkpoint_is_visible(ranks, tmp_path: Path):
    uri = str(tmp_path / "store")
    reports = ranks("peer_dies", 3, uri=uri, expect_exit=False)
    assert ranks.exit_codes == [0, 0, -9]
    assert "nothing came from rank 2" in reports[0]["reason"]
    assert all(report["seconds"] < 10 for report in reports[:2])
    assert [entry.state for entry in Catalog(open_store(uri)).list()] == [State.ABORTED]
    assert Catalog(open_store(uri)).newest_committed() is None


def test_a_save_is_skipped_by_all_ranks_or_by_none(ranks, tmp_path: Path):
    for one in ranks("ranks_skip_together", 2, uri=str(tmp_path / "store")):
        assert one["skipped"] == [3]
        assert one["commits"] == [1, 2]
        assert max(one["stalls"]) < 3


def test_state_that_differs_between_ranks_is_never_mixed_under_one_name(ranks, tmp_path: Path):
    uri = str(tmp_path / "store")
    assert [one["error"] for one in ranks("differing_replicas", 2, uri=uri)] == ["refused", "refused"]
    (entry,) = Catalog(open_store(uri)).list()
    assert entry.state is State.ABORTED
    assert "rng: ranks 0 and 1 hold different values" in entry.reason
    assert "same" not in entry.reason


def test_damage_that_only_one_rank_can_see_sends_all_ranks_to_the_same_older_checkpoint(ranks, tmp_path: Path):
    uri = str(tmp_path / "store")
    older, newer = ranks("save_two", 4, uri=uri)[0]["ids"]
    flip_last_byte(tmp_path / "store" / "ckpt" / newer / "data" / "00003-0.bin")
    for one in ranks("walk_back_together", 4, uri=uri):
        assert (one["id"], one["step"], one["walked"]) == (older, 1, [newer])
    states = {entry.checkpoint_id: entry for entry in Catalog(open_store(uri)).list()}
    assert states[newer].state is State.QUARANTINED
    assert "00003-0.bin" in states[newer].reason
    assert "checksum" in states[newer].reason


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x10
    path.write_bytes(bytes(data))
