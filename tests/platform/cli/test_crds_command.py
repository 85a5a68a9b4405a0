"""`samite crds`: what it prints without a cluster, and what it decides with one (a server in memory here; a real one in tests/cluster/crd)."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from samite.cli.app import run
from samite.crds import custom_resource_definitions
from samite.crds.cluster import MANAGER, apply_all, compare, owners, wait_established
from samite.errors import ConflictError, WaitTimeoutError

DEFINITIONS = custom_resource_definitions()


class MemoryServer:
    """Stores what is applied, as the API server would; fields are owned by the manager that the test names."""

    def __init__(self, stored: dict[str, Any] | None = None, *, manager: str = MANAGER, established: bool = True) -> None:
        self.stored = {definition["metadata"]["name"]: self._as_stored(definition, manager) for definition in (stored or {}).values()}
        self.established = established
        self.applied: list[tuple[str, bool]] = []

    def _as_stored(self, definition: dict[str, Any], manager: str) -> dict[str, Any]:
        found = copy.deepcopy(definition)
        found["metadata"]["managedFields"] = [
            {"manager": manager, "fieldsV1": {"f:spec": {}}},
            {"manager": "kube-apiserver", "fieldsV1": {"f:status": {}}},
        ]
        return found

    def find(self, name: str) -> dict[str, Any] | None:
        found = self.stored.get(name)
        if found is None or not self.established:
            return found
        return found | {"status": {"conditions": [{"type": "Established", "status": "True"}]}}

    def apply(self, definition: dict[str, Any], *, force: bool, dry_run: bool) -> dict[str, Any]:
        name = definition["metadata"]["name"]
        if not dry_run:
            self.applied.append((name, force))
            self.stored[name] = self._as_stored(definition, MANAGER)
        return definition


def older() -> dict[str, Any]:
    found = copy.deepcopy(DEFINITIONS)
    del found["trainingruns"]["spec"]["versions"][0]["selectableFields"]
    return found


def test_show_prints_yaml_that_is_the_definitions(capsys: pytest.CaptureFixture[str]):
    assert run(["crds", "show"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == list(DEFINITIONS.values())


@pytest.mark.parametrize("name", ["trun", "trainingrun", "TrainingRun", "trainingruns", "trainingruns.samite.dev"])
def test_show_takes_every_name_of_a_kind(name: str, capsys: pytest.CaptureFixture[str]):
    assert run(["crds", "show", name, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [DEFINITIONS["trainingruns"]]


def test_show_says_what_there_is_when_a_name_is_unknown(capsys: pytest.CaptureFixture[str]):
    assert run(["crds", "show", "rayclusters"]) == 5
    assert "There are: trainingruns, trainingruntimes, clustertrainingruntimes, nodeblames" in capsys.readouterr().err


def test_show_writes_the_charts_templates(tmp_path: Path):
    assert run(["crds", "show", "--chart", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(f"{plural}.yaml" for plural in DEFINITIONS)


def test_without_a_cluster_diff_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert run(["--kubeconfig", str(tmp_path / "none"), "crds", "diff"]) == 2
    assert "no Kubernetes cluster to talk to" in capsys.readouterr().err


def test_an_empty_cluster_misses_everything():
    found = compare(MemoryServer(), DEFINITIONS)
    assert [item.state for item in found] == ["missing"] * 4
    assert all(item.difference for item in found)


def test_what_is_there_already_is_the_same():
    assert [(item.state, item.difference) for item in compare(MemoryServer(DEFINITIONS), DEFINITIONS)] == [("same", "")] * 4


def test_a_difference_is_shown_in_lines_of_yaml():
    found = compare(MemoryServer(older()), DEFINITIONS)
    assert [item.state for item in found] == ["different", "same", "same", "same"]
    added = [line for line in found[0].difference.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == ["+    selectableFields:", "+    - jsonPath: .status.phase", "+    - jsonPath: .spec.queue.name"]


def test_what_nobody_else_owns_is_applied():
    server = MemoryServer(older())
    assert [item.state for item in apply_all(server, DEFINITIONS, force=False)] == ["different", "same", "same", "same"]
    assert [item.state for item in compare(server, DEFINITIONS)] == ["same"] * 4
    wait_established(server, list(server.stored), timeout_s=1)


@pytest.mark.parametrize("manager", ["helm", "kubectl", "argocd-controller"])
def test_what_another_manager_owns_is_refused_before_anything_is_changed(manager: str):
    server = MemoryServer(older(), manager=manager)
    with pytest.raises(ConflictError, match=f"trainingruns.samite.dev belongs to {manager}.*--force-conflicts") as refused:
        apply_all(server, DEFINITIONS, force=False)
    assert ("helm upgrade" in str(refused.value)) == (manager == "helm")
    assert server.applied == []
    apply_all(server, DEFINITIONS, force=True)
    assert server.applied == [(definition["metadata"]["name"], True) for definition in DEFINITIONS.values()]


def test_the_server_itself_owns_nothing():
    assert owners({"metadata": {"managedFields": [{"manager": "kube-apiserver", "fieldsV1": {"f:spec": {}}}]}}) == ()


def test_a_definition_that_is_never_served_is_a_timeout_and_names_the_next_command():
    server = MemoryServer(DEFINITIONS, established=False)
    with pytest.raises(WaitTimeoutError, match=r"kubectl describe crd trainingruns\.samite\.dev"):
        wait_established(server, list(server.stored), timeout_s=0.1, pause_s=0.02)
