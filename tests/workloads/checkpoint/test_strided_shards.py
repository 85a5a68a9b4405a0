"""FSDP2 over tensor parallelism: shards that PyTorch calls strided are cut where they really lie, and come back in any other layout."""

from pathlib import Path

import pytest


@pytest.mark.parametrize("width", [16, 13])
def test_shards_of_data_and_tensor_parallel_ranks_come_back_bit_for_bit(ranks, tmp_path: Path, width: int):
    for report in ranks("fsdp_over_tensor_parallel", 4, uri=str(tmp_path / "store"), width=width):
        assert "_StridedShard" in report["kinds"]
        assert "apart: wanted a part that lies in one piece, found _S" in report["refused"]
        assert report["wrong"] == []
