"""Kernel tests on a CPU: small tensors, where a second thread costs more than it brings on a shared machine."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)
