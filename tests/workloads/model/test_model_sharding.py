"""The model under FSDP2 on gloo: one pair of processes, several facts. Each child has a hard limit."""

import os
import queue
import socket
from dataclasses import replace

import pytest
import torch
import torch.multiprocessing as mp

from samite_workloads.batch import PackedBatch
from samite_workloads.model import build_model, quantile_balance
from samite_workloads.model.state_dict import from_k3, to_k3

WORLD = 2
LIMIT_S = 120


def row(config, rank):
    """Rank 0 has text only, rank 1 an image: their collectives must still agree."""
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, config.vocab_size, (48,), generator=generator)
    has_image = rank == 1
    return PackedBatch(
        tokens_T=tokens,
        labels_T=tokens.roll(-1),
        modality_T=torch.full((48,), rank, dtype=torch.uint8),
        is_padding_T=torch.arange(48) >= 44,
        cu_seqlens_N1=torch.tensor([0, 20, 44, 48], dtype=torch.int32),
        patches_PD=torch.randn(16 if has_image else 0, config.vision_patch_dim, generator=generator),
        image_grids_I2=torch.tensor([[4, 4]] if has_image else [], dtype=torch.long).view(-1, 2),
        image_positions_M=torch.arange(4 if has_image else 0),
        max_seqlen=24,
    )


def worker(rank, port, config, results):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))

    def sharded():
        model = build_model(config, "meta")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cpu")
        return model

    model, copy = sharded(), sharded()
    model.init_weights(5)
    copy.init_weights(6)
    weights = {name: value.clone() for name, value in to_k3(model).items()}
    from_k3(copy, weights)
    out = model(row(config, rank))
    (out.loss_sum * WORLD).backward()
    gradients = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}
    report = quantile_balance(model, torch.distributed.group.WORLD)
    copied = to_k3(copy)
    if rank == 0:
        biases = [router.e_score_correction_bias for router in model.router_layers()]
        as_lists = ({n: v.numpy() for n, v in part.items()} for part in (weights, gradients, copied))
        results.put((*as_lists, report.loads_LE.numpy(), [b.numpy() for b in biases]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def shapes():
    from samite_workloads.presets import TINY

    # Widths and experts that two ranks cannot share evenly, and recomputation on.
    return replace(
        TINY, vocab_size=61, hidden_size=36, num_layers=4, num_experts=5, latent_size=20, expert_hidden_size=12, recompute_layers=True
    )


@pytest.fixture(scope="module")
def found(shapes):
    """What rank 0 of two saw: K3 weights, summed gradients, weights after an import, loads, biases."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.Queue()
    children = [context.Process(target=worker, args=(rank, port, shapes, results), daemon=True) for rank in range(WORLD)]
    for child in children:
        child.start()
    try:
        answer = results.get(timeout=LIMIT_S)
        for child in children:
            child.join(timeout=30)
    except queue.Empty:
        pytest.fail(f"the ranks did not finish in {LIMIT_S} s: a collective differs between them")
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
    return answer


@pytest.fixture(scope="module")
def alone(shapes):
    torch.set_num_threads(1)
    model = build_model(shapes)
    model.init_weights(5)
    for rank in range(WORLD):
        model(row(shapes, rank)).loss_sum.backward()
    return model, quantile_balance(model)


def test_initial_weights_do_not_depend_on_the_sharding(found, shapes):
    model = build_model(shapes)
    model.init_weights(5)
    for name, value in to_k3(model).items():
        assert torch.equal(torch.from_numpy(found[0][name]), value), name


def test_weights_imported_into_shards_are_those_exported(found):
    assert found[2].keys() == found[0].keys()
    assert all((found[2][name] == value).all() for name, value in found[0].items())


def test_gradients_with_an_image_on_one_rank_only_equal_one_process(found, alone, relative):
    model, _ = alone
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found[1].keys() == expected.keys()
    for name, gradient in expected.items():
        assert relative(torch.from_numpy(found[1][name]), gradient) < 1e-5, name


def test_loads_and_biases_are_bitwise_those_of_one_process(found, alone):
    model, report = alone
    assert (torch.from_numpy(found[3]) == report.loads_LE).all()
    for mine, theirs in zip(found[4], model.router_layers(), strict=True):
        assert torch.equal(torch.from_numpy(mine), theirs.e_score_correction_bias)
