"""Chunked cross entropy: equal to torch's, silent without labels, independent of the chunk."""

from dataclasses import replace

import pytest
import torch

from samite_workloads.model.loss import chunked_cross_entropy


def problem(tokens=50, width=8, vocabulary=37, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(0, vocabulary, (tokens,), generator=generator)
    labels[torch.rand(tokens, generator=generator) < 0.3] = -100
    return hidden, weight, labels, torch.randint(0, 2, (tokens,), generator=generator).to(torch.uint8)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50, 1000])
def test_loss_and_gradients_equal_torch_for_any_chunk(chunk, relative):
    hidden, weight, labels, modality = problem()
    sums = chunked_cross_entropy(hidden, weight, labels, modality, chunk=chunk)
    (sums.loss_sum / 17).backward()
    mine = hidden.grad, weight.grad
    theirs = torch.autograd.grad(torch.nn.functional.cross_entropy(hidden @ weight.T, labels, reduction="sum") / 17, (hidden, weight))
    assert all(relative(a, b) < 1e-12 for a, b in zip(mine, theirs, strict=True))


def test_sums_by_modality_add_up_and_match_torch(relative):
    hidden, weight, labels, modality = problem()
    sums = chunked_cross_entropy(hidden, weight, labels, modality, chunk=16)
    assert sums.num_supervised_by_modality.tolist() == [((labels != -100) & (modality == m)).sum().item() for m in (0, 1)]
    for m in (0, 1):
        wanted = torch.nn.functional.cross_entropy((hidden @ weight.T)[modality == m], labels[modality == m], reduction="sum")
        assert relative(sums.loss_sum_by_modality[m], wanted) < 1e-12
    assert sums.loss_sum_by_modality.sum().item() == pytest.approx(sums.loss_sum.item())
    assert not sums.loss_sum_by_modality.requires_grad


def test_no_supervised_token_gives_loss_zero_and_zero_gradients():
    hidden, weight, labels, modality = problem()
    with torch.no_grad():
        hidden[3] = 1e300
    sums = chunked_cross_entropy(hidden, weight, torch.full_like(labels, -100), modality, chunk=16)
    sums.loss_sum.backward()
    assert sums.loss_sum.item() == 0.0
    assert sums.num_supervised_by_modality.tolist() == [0, 0]
    assert hidden.grad.abs().max() == weight.grad.abs().max() == 0


def test_rows_without_labels_do_not_change_the_gradient_of_the_others(relative):
    hidden, weight, labels, modality = problem()
    kept = labels != -100
    whole = torch.autograd.grad(chunked_cross_entropy(hidden, weight, labels, modality, chunk=16).loss_sum, weight)[0]
    part = torch.autograd.grad(chunked_cross_entropy(hidden[kept], weight, labels[kept], modality[kept], chunk=16).loss_sum, weight)[0]
    assert relative(whole, part) < 1e-13


def test_without_autograd_nothing_is_kept(relative):
    hidden, weight, labels, modality = problem()
    with torch.no_grad():
        sums = chunked_cross_entropy(hidden, weight, labels, modality, chunk=16)
    assert not sums.loss_sum.requires_grad
    assert relative(sums.loss_sum, torch.nn.functional.cross_entropy(hidden @ weight.T, labels, reduction="sum")) < 1e-12


def test_bfloat16_activations_sum_in_float32(relative):
    hidden, weight, labels, modality = problem(tokens=300)
    exact = torch.nn.functional.cross_entropy(hidden.bfloat16().double() @ weight.bfloat16().double().T, labels, reduction="sum")
    sums = chunked_cross_entropy(hidden.bfloat16(), weight.float(), labels, modality, chunk=64)
    assert sums.loss_sum.dtype == torch.float32
    assert relative(sums.loss_sum, exact) < 5e-3


def test_a_micro_batch_without_labels_trains_nothing_in_the_whole_model(nano, make_model, make_batch):
    model, batch = make_model(nano), make_batch(nano, [12, 9], grids=[(2, 4)], padding=4)
    out = model(replace(batch, labels_T=torch.full_like(batch.labels_T, -100)))
    out.loss_sum.backward()
    assert out.loss_sum.item() == 0.0
    assert all(parameter.grad is None or parameter.grad.abs().max() == 0 for parameter in model.parameters())


def test_the_first_loss_is_close_to_a_uniform_guess(nano, make_model, make_batch):
    out = make_model(nano)(make_batch(nano, [200, 100]))
    assert out.loss_sum.item() / out.num_supervised_by_modality.sum().item() == pytest.approx(torch.tensor(64.0).log().item(), abs=0.1)


def test_logits_come_only_when_asked_for(nano, make_model, make_batch):
    model, batch = make_model(nano), make_batch(nano, [20])
    assert model(batch).logits_TV is None
    logits = model(batch, logits=True).logits_TV
    assert logits.shape == (20, 64)
    assert torch.nn.functional.cross_entropy(logits, batch.labels_T, reduction="sum").item() == pytest.approx(
        model(batch).loss_sum.item(), rel=1e-5
    )
