# ruff: noqa: D103, INP001 - tests that travel with this folder
"""Both layouts of the KDA prepare kernel give the same results end to end, in every gate regime, and repeat bitwise."""

import pytest
import torch
from cases import REGIMES, make_inputs, on_hopper, relative_error, run

from samite_kernels.kda.documents import Documents
from samite_kernels.kda.sm90_launch import PREPARE_VARIABLE

pytestmark = on_hopper


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("num_tokens", [1, 63, 333, 9000])
def test_the_slim_layout_equals_the_wide_one(monkeypatch: pytest.MonkeyPatch, regime: str, num_tokens: int) -> None:
    inputs, documents = make_inputs(num_tokens, 3, regime), Documents((0, num_tokens))
    wide = run(inputs, documents, backend="sm90")
    monkeypatch.setenv(PREPARE_VARIABLE, "slim")
    slim = run(inputs, documents, backend="sm90")
    for name, wanted in wide.items():
        # Values below the normal range of float32 may differ, and nothing else.
        assert relative_error(slim[name], wanted) < 1e-6, name
    for _ in range(19):
        again = run(inputs, documents, backend="sm90")
        assert all(torch.equal(slim[name], again[name]) for name in slim)
