"""Model shapes: what is refused and how it is said, presets, the pattern of layers."""

import inspect
from dataclasses import fields, replace

import pytest

from samite_workloads.config import AttentionKind, Balancing, ModelConfig
from samite_workloads.presets import K3, PRESETS, SMALL, TINY, preset


def test_presets_are_found_by_name_and_take_overrides():
    assert preset("tiny") == TINY
    changed = preset("tiny", {"vocab_size": 4096, "balancing": "Sign"})
    assert (changed.vocab_size, changed.balancing) == (4096, Balancing.SIGN)
    assert set(PRESETS) == {"tiny", "small", "k3"}


def test_an_unknown_preset_or_field_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"tiny, small, k3; found 'smal' \(did you mean 'small'\?\)"):
        preset("smal")
    with pytest.raises(ValueError, match=r"not known: 'hiden_size' \(did you mean 'hidden_size'\?\); 'zzz'"):
        preset("tiny", {"hiden_size": 3, "zzz": 1})


def test_every_problem_is_said_at_once():
    with pytest.raises(ValueError, match="does not fit together") as caught:
        preset(
            "tiny",
            {
                "hidden_size": 0,
                "num_layers": 2.5,
                "num_experts": 2,
                "kda_lower_bound": -6.0,
                "kda_a_log_entries": 3,
                "num_dense_layers": 9,
                "vision_head_dim": 6,
                "rms_norm_eps": "small",
            },
        )
    message = str(caught.value)
    for part in (
        "hidden_size must be positive, found 0",
        "num_layers must be a whole number, found 2.5",
        "experts_per_token must be smaller than num_experts (2), found 2",
        "kda_lower_bound must lie in [-5, 0), found -6.0",
        "kda_a_log_entries must be 0 or at least kda_num_heads (4), found 3",
        "vision_head_dim must be a multiple of 4, found 6",
        "rms_norm_eps must be a number, found 'small'",
    ):
        assert part in message


def test_an_unknown_balancing_rule_is_refused():
    with pytest.raises(ValueError, match="'Loss' is not a valid Balancing"):
        replace(TINY, balancing="Loss")


def test_k3_has_24_mla_layers_every_fourth_and_the_last():
    mla = [layer + 1 for layer in range(93) if K3.attention_kind(layer) is AttentionKind.MLA]
    assert mla == [*range(4, 93, 4), 93]
    assert [SMALL.attention_kind(layer) for layer in range(12)].count(AttentionKind.KDA) == 9
    assert [layer for layer in range(93) if not K3.is_moe(layer)] == [0]


def test_every_field_is_documented():
    lines = inspect.getsource(ModelConfig).splitlines()
    for field in fields(ModelConfig):
        position = next(i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: "))
        assert lines[position + 1].strip().startswith('"""'), field.name
