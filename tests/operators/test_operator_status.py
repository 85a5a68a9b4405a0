"""The one status writer: at once for what matters, every ten seconds for progress, and conditions whose times mean something."""

from typing import Any

import pytest

from samite.engines.kuberay.api import TRAINING_RUN
from samite.engines.kuberay.fake_api import _merged
from samite.engines.kuberay.stored_memory import pack, unpack
from samite.lifecycle import Condition, ConditionStatus, Memory, Phase
from samite_operators.status import Note, conditions_document, merge_patch, with_note, without_nulls

RUN = {"metadata": {"generation": 3}}


def writes(operator: Any) -> int:
    return sum(1 for verb, kind, name in operator.api.calls if (verb, kind, name) == ("patch", "trainingruns", "demo/status"))


def test_progress_alone_is_written_every_ten_seconds(make_operator: Any):
    stage = {"name": "only", "contextLength": 128, "workers": {"min": 2, "max": 2}, "batch": {"tokens": 2048}, "budget": {"steps": 500}}
    operator = make_operator(stages=[stage])
    operator.world.checkpoint_every = 1000
    operator.until("Running")
    operator.run(20)
    before = writes(operator)
    shown = set()
    for _ in range(60):
        operator.turn()
        operator.world.tick(1.0)
        shown.add(operator.status["progress"]["step"])
    assert operator.phase == "Running"
    assert 5 <= writes(operator) - before <= 6
    assert len(shown) <= writes(operator) - before + 1


def test_a_finished_run_is_not_written_again(operator: Any):
    operator.until("Succeeded")
    operator.run(15)
    before = writes(operator)
    operator.run(300)
    assert writes(operator) == before


def test_a_restarted_operator_does_not_write_what_is_stored_already(operator: Any):
    operator.until("Succeeded")
    operator.run(15)
    before = operator.object
    operator.restart()
    operator.run(60)
    assert operator.object == before


def test_a_change_of_phase_is_written_at_once(operator: Any):
    seen = []
    while operator.phase != "Succeeded":
        operator.turn()
        seen.append((operator.phase, unpack(operator.status["memory"]).phase.value))
        operator.world.tick(1.0)
    assert all(shown == remembered for shown, remembered in seen)
    assert {"Validating", "Provisioning", "Starting", "Running"} <= {shown for shown, _ in seen}


def test_every_condition_carries_the_generation_and_its_own_time(operator: Any):
    operator.until("Running")
    validated = operator.condition("Validated")
    operator.run(20)
    operator.change(spec={"suspend": True})
    operator.until("Suspended")
    assert operator.condition("Validated")["lastTransitionTime"] == validated["lastTransitionTime"]
    assert {item["observedGeneration"] for item in operator.status["conditions"]} == {2}
    assert operator.status["observedGeneration"] == 2
    assert operator.condition("Suspended")["lastTransitionTime"] > validated["lastTransitionTime"]


def test_the_transition_time_moves_with_the_status_and_only_then():
    old = [{"type": "Hung", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    same = Condition(type="Hung", status=ConditionStatus.FALSE, reason="Other")
    (made,) = conditions_document([same], old, generation=1, now_s=0.0)
    assert made["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    turned = Condition(type="Hung", status=ConditionStatus.TRUE, reason="TwoFacts")
    (made,) = conditions_document([turned], old, generation=1, now_s=0.0)
    assert made["lastTransitionTime"] == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(("given", "told"), [("", "Unknown"), ("3 nodes", "R3nodes"), ("a-b c", "abc"), ("Ready", "Ready")])
def test_a_reason_is_a_word_that_kubernetes_takes(given: str, told: str):
    (made,) = conditions_document([Condition(type="X", status=ConditionStatus.TRUE, reason=given)], [], generation=1, now_s=0.0)
    assert made["reason"] == told


def test_a_note_that_always_held_is_left_out_and_one_that_failed_once_stays():
    good, bad = Note(type="Permitted", holds=True, reason="Granted"), Note(type="Permitted", holds=False, reason="Forbidden", message="m")
    assert with_note(good, {}, run=RUN, now_s=0.0) == []
    (failed,) = with_note(bad, {}, run=RUN, now_s=0.0)
    assert (failed["status"], failed["observedGeneration"]) == ("False", 3)
    (back,) = with_note(good, {"conditions": [failed]}, run=RUN, now_s=1.0)
    assert back["status"] == "True"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"a": 1}),
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"c": 3}}),
        ({"a": [1, 2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {"a": 2}),
        ({"a": 2}, {"a": {"b": 1}}),
        ({"a": {"b": {}}}, {"a": {"b": {}}}),
    ],
)
def test_a_merge_patch_makes_the_one_of_the_other(before: dict[str, Any], after: dict[str, Any]):
    assert _merged(before, merge_patch(before, after)) == after


def test_the_memory_comes_back_as_it_was_and_damage_is_a_value_error():
    memory = Memory(phase=Phase.RUNNING, attempt=7)
    assert unpack(pack(memory)) == memory
    assert unpack("") == Memory()
    for damaged in ("AAAA", "%%%", pack(memory)[:-8], "eJwDAAAAAAE="):
        with pytest.raises(ValueError, match=r"status\.memory cannot be read"):
            unpack(damaged)


def test_unknown_is_absent():
    assert without_nulls({"a": None, "b": {"c": None, "d": [{"e": None, "f": 0}]}}) == {"b": {"d": [{"f": 0}]}}


def test_the_patch_names_the_version_that_the_turn_began_with(operator: Any):
    operator.until("Running")
    version = operator.object["metadata"]["resourceVersion"]
    seen = []
    patch = operator.api.patch

    def spy(kind: Any, namespace: str, name: str, document: Any, *, subresource: str = "") -> Any:
        if subresource == "status" and kind == TRAINING_RUN:
            seen.append(document["metadata"]["resourceVersion"])
        return patch(kind, namespace, name, document, subresource=subresource)

    operator.api.patch = spy
    operator.change(metadata={"annotations": {"samite.dev/cancel": "true"}})
    version = operator.object["metadata"]["resourceVersion"]
    operator.turn()
    assert seen[0] == version


def test_fields_that_an_older_definition_drops_are_named_once_and_written_again_only_after_a_while(make_operator: Any):
    stage = {"name": "only", "contextLength": 128, "workers": {"min": 2, "max": 2}, "batch": {"tokens": 2048}, "budget": {"steps": 5000}}
    operator = make_operator(stages=[stage])
    operator.world.checkpoint_every = 10_000
    operator.api.unknown["trainingruns"] = ("status.ettr", "status.columns.restarts")
    operator.until("Running")
    operator.run(5)
    message = operator.condition("Applied")["message"]
    assert "status.ettr" in message
    assert "status.columns.restarts" in message
    assert "samite crds" in message
    before = writes(operator)
    operator.run(60)
    assert 5 <= writes(operator) - before <= 7, "as often as progress is written, and no more"
    operator.api.unknown.clear()
    operator.run(320)
    assert "ettr" in operator.status
    assert operator.condition("Applied")["status"] == "True"


def test_nothing_is_done_for_a_run_whose_memory_the_server_does_not_keep(operator: Any):
    operator.api.unknown["trainingruns"] = ("status.memory",)
    operator.run(40)
    assert operator.engine.applied == []
    assert set(operator.outcomes) == {"refused"}
    operator.api.unknown.clear()
    operator.until("Succeeded")
