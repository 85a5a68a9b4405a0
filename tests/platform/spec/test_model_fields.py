"""The light table of model fields says what the workers' configuration says."""

from dataclasses import MISSING, fields, replace

import pytest

from samite.spec.model_fields import MAY_BE_ZERO, MODEL_FIELDS, override_errors
from samite_workloads.config import ModelConfig
from samite_workloads.presets import PRESETS

PRESET_NAMES = ("tiny", "small")
TYPES = {"int": int, "float": float, "bool": bool, "text": str}


def test_names_and_order_are_those_of_the_configuration():
    assert list(MODEL_FIELDS) == [field.name for field in fields(ModelConfig)]


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_values_are_those_of_the_preset(preset: str):
    assert {name: field.values[preset] for name, field in MODEL_FIELDS.items()} == {
        field.name: getattr(PRESETS[preset], field.name) for field in fields(ModelConfig)
    }


def test_types_are_those_of_the_values():
    assert [name for name, field in MODEL_FIELDS.items() if not isinstance(getattr(PRESETS["tiny"], name), TYPES[field.type])] == []
    assert [field.name for field in fields(ModelConfig) if field.default is MISSING and field.name not in MODEL_FIELDS] == []


@pytest.mark.parametrize("name", [name for name, field in MODEL_FIELDS.items() if field.type in {"int", "float"}])
def test_an_override_is_refused_when_the_model_refuses_it(name: str):
    def model_refuses(preset: str, value: object) -> bool:
        try:
            replace(PRESETS[preset], **{name: value})
        except (ValueError, TypeError):
            return True
        return False

    values = [-6, -5.0, -1, 0, 1, 2, 3, 4, 8, 9, 64.5, 100, 129, True, "8"]
    cases = [(preset, value) for preset in PRESET_NAMES for value in values]
    assert [case for case in cases if bool(override_errors(case[0], {name: case[1]})) != model_refuses(*case)] == []


def test_counts_that_may_be_zero_are_accepted_by_the_model():
    assert replace(PRESETS["tiny"], **dict.fromkeys(MAY_BE_ZERO, 0))
