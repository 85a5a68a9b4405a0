"""A run that is suspended, changed and resumed (scenario S27): what may change takes effect, the rest is refused by name, and a wish is never lost."""

import copy
from typing import Any

import pytest

from samite.engines.kuberay.api import TRAINING_RUN, error_of
from samite.lifecycle import StartCluster, Submit
from samite.spec.rules import text_of
from samite.spec.stored import run_from_object
from samite.spec.update_rules import check_update


def stages_of(operator: Any, **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """The stored stages, with changes by name."""
    return [{**stage, **changes.get(stage["name"], {})} for stage in copy.deepcopy(operator.object["spec"]["stages"])]


def of(operator: Any, kind: type) -> list[Any]:
    return [action for action in operator.engine.applied if isinstance(action, kind)]


def test_a_stage_that_has_not_begun_may_get_other_workers_while_the_run_is_suspended(operator: Any):
    operator.until("Running")
    operator.change(spec={"suspend": True})
    operator.until("Suspended")
    operator.change(spec={"stages": stages_of(operator, long={"workers": {"min": 4, "max": 4}})})
    operator.run(5)
    assert operator.phase == "Suspended"
    operator.change(spec={"suspend": False})
    operator.until("Succeeded")
    assert {(action.stage_index, action.num_nodes) for action in of(operator, Submit)} == {(0, 2), (1, 4)}
    assert {len(action.nodes) for action in of(operator, StartCluster)} == {2, 4}


@pytest.mark.parametrize(
    "change", [{"workers": {"min": 1, "max": 4}}, {"contextLength": 256}, {"name": "other"}, {"budget": {"steps": 40}}]
)
def test_a_stage_that_has_begun_is_refused_by_name_and_the_wish_to_resume_is_not(operator: Any, change: dict[str, Any]):
    """The rules that the API server checks as CEL (tests/cluster/crd), in Python, on the object as the operator left it."""
    operator.until("Running")
    operator.change(spec={"suspend": True})
    operator.until("Suspended")
    stored, started = operator.object, operator.status["startedStages"]
    changed = {**stored, "spec": {**stored["spec"], "stages": stages_of(operator, short=change)}}
    found = check_update(stored, changed, started)
    assert found
    assert all("stages" in finding.path for finding in found)
    assert any("short" in text_of(finding) for finding in found)
    later = {**stored, "spec": {**stored["spec"], "stages": stages_of(operator, long={"workers": {"min": 4, "max": 4}})}}
    resumed = {**stored, "spec": {**stored["spec"], "suspend": False}}
    assert check_update(stored, later, started) == check_update(stored, resumed, started) == []


@pytest.mark.parametrize("wishes", [(True, False), (True, False, True, False), (False, True, False)])
@pytest.mark.parametrize("turns_between", [0, 1])
def test_toggling_within_a_second_ends_where_it_was_left(operator: Any, wishes: tuple[bool, ...], turns_between: int):
    operator.until("Running")
    for wish in wishes:
        operator.change(spec={"suspend": wish})
        for _ in range(turns_between):
            operator.turn()
    operator.until("Succeeded")
    assert operator.world.attempts_seen == sorted(set(operator.world.attempts_seen))


@pytest.mark.parametrize("status", [409, 429, 500, 503])
@pytest.mark.parametrize("when", ["suspend", "resume"])
def test_a_write_that_is_rejected_costs_a_turn_and_no_wish(operator: Any, status: int, when: str):
    operator.until("Running")
    for name, wish, phase in (("suspend", True, "Suspended"), ("resume", False, "Succeeded")):
        if name == when:
            operator.api.refusals.append(("patch", TRAINING_RUN.plural, error_of(status, "not now")))
        operator.change(spec={"suspend": wish})
        operator.until(phase)
    assert operator.api.refusals == []
    assert len(of(operator, Submit)) >= 2


def test_a_suspended_run_with_a_later_stage_that_makes_no_sense_says_so_and_resumes_when_it_is_mended(operator: Any):
    operator.until("Running")
    operator.change(spec={"suspend": True})
    operator.until("Suspended")
    good = stages_of(operator)
    operator.change(spec={"stages": stages_of(operator, long={"workers": {"min": 3, "max": 3}})})  # 16 rows do not divide by 3
    operator.run(5)
    assert operator.condition("Validated")["status"] == "False"
    assert "stages[1]" in operator.condition("Validated")["message"]
    operator.change(spec={"suspend": False, "stages": good})
    operator.until("Succeeded")
    assert run_from_object(operator.object).name == "demo"
