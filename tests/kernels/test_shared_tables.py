"""Tables in device memory: found again, forgotten when too many, and kept for good once a CUDA graph reads them."""

import weakref

import pytest
import torch

from samite_kernels.runtime.tables import shared_table


class Made:
    """What a table is made of."""


def test_tables_are_shared_and_the_oldest_are_forgotten_but_those_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    gpu = torch.device("cuda", 0)

    @shared_table
    def table(number: int, device: torch.device) -> Made:
        return Made()

    plain, of_graph = weakref.ref(table(0, gpu)), weakref.ref(table(1, gpu))
    capturing = True
    assert table(1, gpu) is of_graph()
    capturing = False
    assert table(0, gpu) is plain()
    assert plain() is not None
    for number in range(2, 200):
        table(number, gpu)
    assert plain() is None
    assert of_graph() is not None


def test_a_table_on_the_cpu_asks_nothing_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        raise AssertionError("there is no GPU")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", refuse)
    assert shared_table(lambda device: [device])(torch.device("cpu")) == [torch.device("cpu")]
