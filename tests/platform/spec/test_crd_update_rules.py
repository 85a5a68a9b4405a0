"""What may not change in a run that exists, in Python; tests/cluster/crd asks the API server the same."""

from typing import Any

import pytest
import yaml

from samite.spec.filled import filled_document
from samite.spec.rules import text_of
from samite.spec.update_rules import check_update
from samite.spec.yaml_tree import dotted

BASE = """\
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {name: sample}
spec:
  engine: RayCluster
  managedBy: samite.dev/operator
  checkpoint: {uri: "s3://bucket/run"}
  approvals: [{stage: first, by: me}]
  stages:
    - {name: first, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}}
    - {name: second, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}, handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}}
    - {name: third, contextLength: 64, batch: {tokens: 512}, budget: {steps: 3}, handover: {optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}}
"""


def document() -> dict[str, Any]:
    return yaml.safe_load(BASE)


def refused(new: dict[str, Any], *, started: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    findings = check_update(filled_document(document()), filled_document(new), started)
    return [(dotted(finding.path), text_of(finding)) for finding in findings]


def test_a_run_that_stays_as_it_is_changes_nothing():
    assert refused(document(), started=("first", "second")) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [(("engine",), "RayJob"), (("managedBy",), "other.example/x"), (("managedBy",), None), (("checkpoint", "uri"), "s3://bucket/other")],
)
def test_engine_owner_and_storage_are_fixed(path: tuple[str, ...], value: str | None):
    new = document()
    place = new["spec"]
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    said = refused(new)
    assert [place for place, _ in said] == [".".join(("spec", *path))]
    assert said[0][1].endswith("submit it as another run, with another name")


def test_a_stage_that_has_begun_is_frozen_and_a_later_one_is_not():
    new = document()
    new["spec"]["stages"][1]["budget"] = {"steps": 5}
    assert refused(new) == []
    assert refused(new, started=("first",)) == []
    assert [place for place, _ in refused(new, started=("first", "second"))] == ["spec.stages[1]"]


@pytest.mark.parametrize("order", [("second", "first", "third"), ("third", "first", "second"), ("second", "third")])
def test_stages_that_have_begun_neither_move_nor_go(order: tuple[str, ...]):
    new = document()
    by_name = {stage["name"]: stage for stage in new["spec"]["stages"]}
    new["spec"]["stages"] = [by_name[name] for name in order]
    assert refused(new, started=("first", "second"))


def test_later_stages_may_be_added_moved_and_removed():
    new = document()
    new["spec"]["stages"][2]["name"] = "other"
    new["spec"]["stages"].append({**new["spec"]["stages"][2], "name": "one-more"})
    assert refused(new, started=("first", "second")) == []


def test_approvals_are_added_but_neither_changed_nor_removed():
    new = document()
    new["spec"]["approvals"].append({"stage": "second", "by": "you"})
    assert refused(new) == []
    new["spec"]["approvals"][0]["by"] = "somebody else"
    assert refused(new) == [
        ("spec.approvals", "wanted the approval of first by me as it was given; found it changed or removed; approvals are only added")
    ]
    del new["spec"]["approvals"]
    assert len(refused(new)) == 1
