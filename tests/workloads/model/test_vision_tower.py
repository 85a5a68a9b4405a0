"""The vision tower and projector against a loop over images, heads and positions; images in the sequence."""

import pytest
import torch

from samite_workloads.model.vision import interpolated_positions, merge_patches, rotate, rotation

GRIDS = [(2, 2), (4, 6), (4, 4), (4, 4), (2, 8)]


@pytest.fixture
def patches(nano):
    count = sum(rows * columns for rows, columns in GRIDS)
    return torch.randn(count, nano.vision_patch_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def tower_of(model):
    return lambda patches, grids: model.mm_projector(model.vision_tower(patches, grids))


def released(model):
    from samite_workloads.model.state_dict import to_k3

    return {name: value.detach() for name, value in to_k3(model).items() if name.startswith(("vision_tower.", "mm_projector."))}


def test_rows_of_mixed_image_sizes_equal_the_loop(nano, make_model, patches, oracle, relative):
    model = make_model(nano, dtype=torch.float64, spread=0.1)
    wanted = oracle.vision(patches, GRIDS, released(model), heads=nano.vision_num_heads)
    assert relative(tower_of(model)(patches, GRIDS), wanted) < 1e-10
    single = make_model(nano, dtype=torch.float32, spread=0.1)
    assert relative(tower_of(single)(patches.float(), GRIDS), wanted) < 1e-4


def test_an_image_gives_the_same_rows_alone_and_among_others(nano, make_model, patches):
    model = make_model(nano, dtype=torch.float64, spread=0.1)
    together = tower_of(model)(patches, GRIDS)
    alone = tower_of(model)(patches[4:28], [(4, 6)])
    assert torch.allclose(together[1:7], alone, atol=1e-12)


def test_positions_are_not_touched_when_the_grid_has_the_learned_size():
    grid = torch.randn(4, 4, 3)
    assert torch.equal(interpolated_positions(grid, (4, 4)), grid.flatten(0, 1))


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (8, 8), (10, 2), (3, 5)])
def test_interpolated_positions_equal_torch(size, relative):
    grid = torch.randn(4, 4, 3, dtype=torch.float64)
    wanted = torch.nn.functional.interpolate(grid.permute(2, 0, 1)[None], size=size, mode="bilinear", align_corners=False)
    assert relative(interpolated_positions(grid, size), wanted[0].permute(1, 2, 0).flatten(0, 1)) < 1e-12


def test_patches_merge_in_reading_order_of_squares():
    x = torch.arange(4 * 4).view(-1, 1)
    assert merge_patches(x, [(4, 4)]).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_rotation_depends_on_the_distance_only_along_each_axis():
    grid, width = (4, 6), 16
    turn = rotation(grid, width, 1e4)
    q, k = (torch.randn(1, 1, width, dtype=torch.float64).expand(24, 1, width) for _ in range(2))
    score = (rotate(q, turn).squeeze(1) @ rotate(k, turn).squeeze(1).T).view(4, 6, 4, 6)
    assert torch.allclose(score[0, 1, 2, 4], score[1, 0, 3, 3], atol=1e-12)
    assert not torch.allclose(score[0, 0, 0, 1], score[0, 0, 1, 0], atol=1e-3)


def test_the_loss_of_captions_reaches_the_patch_embedding(nano, make_model, make_batch):
    model = make_model(nano)
    model(make_batch(nano, [12, 12], grids=[(2, 4), (4, 4)])).loss_sum.backward()
    assert model.vision_tower.patch_embed.grad.norm() > 0
    assert model.vision_tower.pos_emb.grad.norm() > 0


def test_a_batch_without_images_still_runs_the_tower_and_gets_zero_gradients(nano, make_model, make_batch):
    model = make_model(nano)
    calls = []
    model.vision_tower.register_forward_hook(lambda *_: calls.append(1))
    batch = make_batch(nano, [30])
    out = model(batch)
    out.loss_sum.backward()
    assert calls == [1]
    for name, parameter in model.named_parameters():
        if name.startswith(("vision_tower.", "mm_projector.")):
            assert parameter.grad is not None
            assert parameter.grad.abs().max() == 0


def test_images_replace_exactly_their_positions(nano, make_model, make_batch):
    model = make_model(nano, dtype=torch.float64)
    batch = make_batch(nano, [12, 12], grids=[(2, 4), (4, 4)])
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(batch)
    wanted = model.embed_tokens.weight[batch.tokens_T].clone()
    wanted[batch.image_positions_M] = tower_of(model)(batch.patches_PD.double(), [(2, 4), (4, 4)])
    assert torch.equal(seen[0], wanted)


@pytest.mark.parametrize(
    ("grids", "message"),
    [([(3, 4)], "image 0 must have an even number"), ([(2, 4)], "they cover 8, the batch holds 12"), ([(4, 0), (3, 4)], "image 0")],
)
def test_grids_that_do_not_fit_are_refused_with_the_reason(nano, make_model, grids, message):
    model = make_model(nano)
    with pytest.raises(ValueError, match=message):
        model.vision_tower(torch.randn(12, nano.vision_patch_dim), grids)


def test_patches_without_positions_are_refused(nano, make_model, make_batch):
    from dataclasses import replace

    batch = make_batch(nano, [12], grids=[(2, 4)])
    with pytest.raises(ValueError, match="8 patches make 2 merged ones, found 1 positions"):
        make_model(nano)(replace(batch, image_positions_M=batch.image_positions_M[:1]))
