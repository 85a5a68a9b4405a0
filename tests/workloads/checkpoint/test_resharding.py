"""Saved at one number of ranks, loaded at another: bit for bit, for every kind of sharding."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("writers", [4, 1])
def test_what_some_ranks_save_any_number_of_ranks_load_bit_for_bit(ranks, tmp_path: Path, writers: int):
    uri = str(tmp_path / "store")
    reports = ranks("reshard_everywhere", 4, uri=uri, writers=writers)
    (saved,) = {tuple(report["ids"]) for report in reports[:writers]}
    for rank, report in enumerate(reports):
        assert [size for size, *_ in report["loads"]] == list(range(max(1, rank + 1), 5))
        for size, wrong, *facts in report["loads"]:
            assert (size, wrong) == (size, [])
            assert facts == [41, {"cursor": 7}, writers, saved[0]]


def test_replicas_share_the_writing_so_that_every_byte_is_stored_once(ranks, tmp_path: Path):
    saved = ranks("save_and_leave", 4, uri=str(tmp_path / "store"))
    elements = 10 * 33 * 4 + 17 * 2 + 1500 * 1111 * 4 + 7 * 13 * 4 + 9 * 10 * 2 + 8 + 50 + 900_001 * 4 + 12 * 4
    assert elements <= saved[0]["bytes"][0] <= elements + 4 * 10 * 4096


def test_uneven_fsdp_shards_come_back_on_other_world_sizes(ranks, tmp_path: Path):
    uri = str(tmp_path / "store")
    saved = ranks("fsdp_round_trip", 3, uri=uri, save=True, epoch=1)
    for epoch, world in ((2, 2), (3, 4)):
        loaded = ranks("fsdp_round_trip", world, uri=uri, save=False, epoch=epoch)
        assert all(one["sums"] == saved[0]["sums"] for one in loaded)


def test_a_misfit_is_refused_on_every_rank_with_every_difference_and_nothing_is_touched(ranks, tmp_path: Path):
    uri = str(tmp_path / "store")
    ranks("save_and_leave", 2, uri=uri)
    for one in ranks("mismatched_targets", 2, uri=uri):
        assert "unknown: is not in the checkpoint" in one["error"]
        assert "one_row: wanted float32 [2, 17], the checkpoint has bfloat16 [1, 17]" in one["error"]
        assert "flags: is in the checkpoint, but nothing here takes it" in one["error"]
        assert one["touched"] == []
