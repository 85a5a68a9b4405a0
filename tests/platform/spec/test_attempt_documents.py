"""The files between engine and trainer are strict JSON, whatever numbers they carry."""

import json
import math

import pytest

from samite.spec.attempt import AttemptResult, Heartbeat


def refuse(token: str) -> None:
    raise AssertionError(f"{token} is no JSON")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 2.5])
def test_a_heartbeat_is_strict_json_and_comes_back(loss: float):
    beat = Heartbeat(
        rank=0,
        node="node-1",
        pid=7,
        submission_id="r-s00-a1",
        incarnation=0,
        step=3,
        tokens=9,
        phase="training",
        monotonic_s=1.5,
        time_unix_s=2.5,
        loss=loss,
    )
    text = beat.to_json()
    json.loads(text, parse_constant=refuse)
    back = Heartbeat.from_json(text)
    assert back.loss == loss if math.isfinite(loss) else math.isnan(back.loss)
    assert (back.step, back.monotonic_s, back.node) == (3, 1.5, "node-1")


def test_numbers_inside_a_failure_are_strict_json_too():
    text = AttemptResult(outcome="failed", submission_id="a", step=1, tokens=2, failure={"value": math.nan, "text": "\ud800 ü"}).to_json()
    assert json.loads(text, parse_constant=refuse)["failure"] == {"value": "NaN", "text": "\ud800 ü"}
    assert text.isascii()
