"""A manager whose storage refuses to say what is there starts nothing from step 0: neither at the first start nor on resume (S7)."""

import pytest
import torch

from samite.checkpoint.store import StoreOptions
from samite.checkpoint.store.sink import Sink
from samite.errors import NotAllowedError
from samite_workloads.checkpoint import CheckpointManager, CheckpointOptions

torch.set_num_threads(1)


def manager(sink: Sink, epoch: int, *, probe: bool = True) -> CheckpointManager:
    options = StoreOptions(endpoint=sink.endpoint, access_key="a", secret_key="s", region="r", timeout_s=2.0)
    return CheckpointManager(
        "s3://bucket/run", run_uid="run", epoch=epoch, options=CheckpointOptions(store=options, probe=probe, load_deadline_s=3.0)
    )


@pytest.mark.parametrize("probe", [True, False])
def test_the_first_start_is_refused_before_anything_is_trained(probe: bool):
    with Sink() as sink:
        sink.objects.may_list = False
        with pytest.raises(NotAllowedError, match="s3:ListBucket"):
            manager(sink, 1, probe=probe)


def test_a_right_that_is_lost_between_opening_and_restoring_ends_the_restore_and_not_the_progress():
    with Sink() as sink:
        first = manager(sink, 1)
        first.save(7, {"w": torch.arange(5.0)}, asynchronous=False)
        second, target = manager(sink, 2), {"w": torch.zeros(5)}
        sink.objects.may_list = False
        with pytest.raises(NotAllowedError, match="403"):
            second.restore("latest", target)
        assert target["w"].tolist() == [0.0] * 5
        sink.objects.may_list = True
        assert second.restore("latest", target).step == 7
        assert target["w"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
