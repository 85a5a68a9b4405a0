"""The short convolution against torch's own, with documents and halo."""

import pytest
import torch

from samite_kernels.conv import short_conv


def test_one_document_equals_the_depthwise_convolution_of_torch() -> None:
    x, weight = torch.randn(2, 11, 6, dtype=torch.float64), torch.randn(6, 1, 4, dtype=torch.float64)
    padded = torch.nn.functional.pad(x.transpose(1, 2), (3, 0))
    wanted = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight, groups=6)).transpose(1, 2)
    torch.testing.assert_close(short_conv(x, weight)[0], wanted)


def test_packed_documents_do_not_see_each_other() -> None:
    x, weight = torch.randn(1, 12, 6), torch.randn(6, 4)
    start = torch.randn(4, 3, 6)
    offsets = [0, 5, 5, 6, 12]
    y, state = short_conv(x, weight, cu_seqlens=torch.tensor(offsets), initial_state=start, output_final_state=True)
    for index in range(4):
        piece = x[:, offsets[index] : offsets[index + 1]]
        alone, alone_state = short_conv(piece, weight, initial_state=start[index : index + 1], output_final_state=True)
        torch.testing.assert_close(y[:, offsets[index] : offsets[index + 1]], alone)
        assert torch.equal(state[index : index + 1], alone_state)


def test_a_cut_row_with_its_halo_equals_the_whole_and_returns_the_halo_gradient() -> None:
    x = torch.randn(1, 12, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    whole, _ = short_conv(x, weight)
    first, halo = short_conv(x[:, :2], weight, output_final_state=True)
    second, _ = short_conv(x[:, 2:], weight, initial_state=halo)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    gradient = torch.randn_like(whole)
    wanted = torch.autograd.grad(whole, [x, weight], gradient)
    found = torch.autograd.grad(torch.cat([first, second], 1), [x, weight], gradient)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shape", [(0, 5, 8), (1, 5, 0)])
def test_a_call_without_rows_or_channels_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        short_conv(torch.randn(shape), torch.randn(shape[2], 4))


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("weight", torch.empty(8, 4, device="meta"), "weight must be on cpu like x, found meta"),
        ("weight", torch.ones(8, 4, dtype=torch.int32), "weight must be a floating-point tensor"),
        ("initial_state", torch.empty(1, 3, 8, device="meta"), "initial_state must be on cpu like x, found meta"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(name: str, wrong: torch.Tensor, message: str) -> None:
    given = {"x": torch.randn(1, 5, 8), "weight": torch.randn(8, 4)} | {name: wrong}
    with pytest.raises(ValueError, match=message):
        short_conv(**given)
