"""The short convolution against torch's own, with documents and halo."""

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
