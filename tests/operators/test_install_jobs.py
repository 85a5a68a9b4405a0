"""The chart's Jobs: runtimes, the check before an upgrade, and the test of a release."""

import json
from pathlib import Path
from typing import Any

import pytest

from samite.engines.kuberay.api import Document, ForbiddenApiError, GoneApiError, Kind, Listing, PermanentApiError
from samite.errors import UsageError
from samite_operators.install.release import Release, Right
from samite_operators.install.runtimes import apply_runtimes
from samite_operators.install.selftest import FORBIDDEN, self_test
from samite_operators.install.upgrade import KINDS, check_upgrade

RIGHT = Right(group="ray.io", resource="rayclusters", verb="create", namespace="team-a")


class Cluster:
    """An API server that holds definitions and runs, grants some rights, and serves a new kind only after a while."""

    def __init__(self, definitions: dict[str, Document], *, runs: list[Document] | None = None, rights: set[Right] | None = None) -> None:
        self.definitions, self.runs, self.rights = definitions, runs or [], rights or set()
        self.applied: list[str] = []
        self.closed: set[str] = set()
        self.not_served_for = 0

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        if name not in self.definitions:
            raise GoneApiError(f"{name} not found")
        return self.definitions[name]

    def list(self, kind: Kind, namespace: str = "", **_: Any) -> Listing:
        if namespace in self.closed:
            raise ForbiddenApiError(f"cannot list resource in the namespace {namespace}")
        return Listing(items=[run for run in self.runs if namespace in ("", run["metadata"]["namespace"])], resource_version="1")

    def create(self, kind: Kind, namespace: str, document: Document) -> Document:
        asked = document["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        right = Right(
            group=asked["group"], resource=resource, verb=asked["verb"], namespace=asked.get("namespace", ""), name=asked.get("name", "")
        )
        return {"status": {"allowed": right in self.rights}}

    def apply(self, kind: Kind, namespace: str, document: Document) -> Document:
        if self.not_served_for:
            self.not_served_for -= 1
            raise GoneApiError("the server could not find the requested resource")
        if not document["spec"]:
            raise PermanentApiError("spec is empty")
        self.applied.append(document["metadata"]["name"])
        return document


def definition(*, stored: str = "v1alpha1", managers: tuple[str, ...] = ("helm",), established: bool = True) -> Document:
    managed = [{"manager": name, "operation": "Apply", "fieldsV1": {"f:spec": {}}} for name in managers]
    conditions = [{"type": "Established", "status": str(established)}]
    return {"metadata": {"managedFields": managed}, "status": {"storedVersions": [stored], "conditions": conditions}}


def rayclusters(version: str = "v1") -> Document:
    schema = {"openAPIV3Schema": {"properties": {"spec": {"properties": {}}}}}
    return {"spec": {"versions": [{"name": version, "served": True, "schema": schema}]}}


def all_definitions(**changes: Document) -> dict[str, Document]:
    found = {f"{plural}.samite.dev": definition() for plural in KINDS} | {"rayclusters.ray.io": rayclusters()}
    return found | {f"{plural}.samite.dev": document for plural, document in changes.items()}


def release(*, crds_by_chart: bool = True, namespaces: tuple[str, ...] = ("team-a",), rights: tuple[Right, ...] = (RIGHT,)) -> Release:
    return Release(namespaces=namespaces, crds_by_chart=crds_by_chart, rights=rights)


def test_a_cluster_that_fits_may_be_upgraded():
    runs = [{"metadata": {"namespace": "team-a"}, "status": {"phase": phase}} for phase in ("Running", "Succeeded", "Recovering")]
    findings = check_upgrade(Cluster(all_definitions(), runs=runs), release())
    assert findings.problems == []
    assert "2 runs are active; they go on while the operator is replaced" in findings.seen


def test_a_namespace_that_an_upgrade_adds_is_no_obstacle():
    """The check runs before the upgrade, with the rights of the release that is there."""
    cluster = Cluster(all_definitions(), runs=[{"metadata": {"namespace": "team-a"}, "status": {"phase": "Running"}}])
    cluster.closed = {"team-b"}
    findings = check_upgrade(cluster, release(namespaces=("team-a", "team-b")))
    assert findings.problems == []
    assert "namespace team-b is new to this release: its runs begin to be looked after" in findings.seen
    assert "1 runs are active; they go on while the operator is replaced" in findings.seen


def test_objects_stored_in_an_unknown_version_stop_the_upgrade():
    findings = check_upgrade(Cluster(all_definitions(trainingruns=definition(stored="v2"))), release())
    (problem,) = findings.problems
    assert "trainingruns.samite.dev has objects stored as v2" in problem


def test_two_managers_of_one_definition_stop_the_upgrade_if_the_chart_is_one_of_them():
    cluster = Cluster(all_definitions(nodeblames=definition(managers=("helm", "argocd-controller"))))
    (problem,) = check_upgrade(cluster, release()).problems
    assert "argocd-controller" in problem
    assert "crds.install=false" in problem
    assert check_upgrade(cluster, release(crds_by_chart=False)).problems == []


def test_missing_definitions_matter_only_if_nobody_brings_them():
    assert check_upgrade(Cluster({}), release()).problems == []
    problems = check_upgrade(Cluster({}), release(crds_by_chart=False)).problems
    assert len(problems) == len(KINDS)
    assert all("samite crds apply" in problem for problem in problems)


def test_a_kuberay_that_is_too_old_stops_the_upgrade_and_a_missing_one_does_not():
    definitions = all_definitions()
    del definitions["rayclusters.ray.io"]
    assert check_upgrade(Cluster(definitions), release()).problems == []
    (problem,) = check_upgrade(Cluster({**definitions, "rayclusters.ray.io": rayclusters("v1alpha1")}), release()).problems
    assert "install KubeRay" in problem


def test_a_release_with_its_rights_and_no_others_passes():
    findings = self_test(Cluster(all_definitions(), rights={RIGHT}), release())
    assert findings.problems == []
    assert "1 of 1 rights are there" in findings.seen


def test_a_missing_right_is_named():
    (problem,) = self_test(Cluster(all_definitions()), release()).problems
    assert problem.startswith("missing right: create rayclusters.ray.io in team-a")


@pytest.mark.parametrize("forbidden", FORBIDDEN, ids="-".join)
def test_a_right_too_many_is_named(forbidden: tuple[str, str, str]):
    group, resource, verb = forbidden
    excess = Right(group=group, resource=resource, verb=verb, namespace="team-a")
    (problem,) = self_test(Cluster(all_definitions(), rights={RIGHT, excess}), release()).problems
    assert problem.startswith(f"a right too many: {excess}")


def test_definitions_that_are_not_served_fail_the_test():
    problems = self_test(Cluster(all_definitions(trainingruns=definition(established=False)), rights={RIGHT}), release()).problems
    assert problems == ["trainingruns.samite.dev is not served yet; see kubectl describe crd trainingruns.samite.dev"]


def test_runtimes_wait_for_their_definition(tmp_path: Path):
    write_runtimes(tmp_path, "b", "a")
    cluster, slept = Cluster({}), []
    cluster.not_served_for = 3
    assert apply_runtimes(cluster, tmp_path, clock=lambda: float(len(slept)), sleep=slept.append) == ["a", "b"]
    assert len(slept) == 3


def test_runtimes_do_not_wait_for_ever(tmp_path: Path):
    write_runtimes(tmp_path, "a")
    cluster, slept = Cluster({}), []
    cluster.not_served_for = 1000
    with pytest.raises(GoneApiError):
        apply_runtimes(cluster, tmp_path, limit_s=5, clock=lambda: float(len(slept)), sleep=slept.append)
    assert len(slept) == 5


def test_a_runtime_that_is_refused_fails_at_once(tmp_path: Path):
    write_runtimes(tmp_path, "a", spec={})
    with pytest.raises(PermanentApiError):
        apply_runtimes(Cluster({}), tmp_path)


def test_a_document_of_another_kind_is_refused_by_name(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"kind": "Secret", "metadata": {"name": "a"}}')
    with pytest.raises(UsageError, match=r"wanted a ClusterTrainingRuntime, found 'Secret'"):
        apply_runtimes(Cluster({}), tmp_path)


def test_rights_are_read_verb_by_verb(tmp_path: Path):
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get"]}
    document = {"namespaces": ["team-a"], "crdsInstall": True, "roles": [{"namespace": "team-a", "rules": [rule]}]}
    (tmp_path / "release.json").write_text(json.dumps(document))
    assert [str(right) for right in Release.read(tmp_path).rights] == ["get secrets a in team-a", "get secrets b in team-a"]


def test_a_missing_release_document_says_where_this_command_belongs(tmp_path: Path):
    with pytest.raises(UsageError, match="runs in the chart's Jobs"):
        Release.read(tmp_path)


def write_runtimes(folder: Path, *names: str, spec: Document | None = None) -> None:
    for name in names:
        document = {"kind": "ClusterTrainingRuntime", "metadata": {"name": name}, "spec": {"head": {}} if spec is None else spec}
        (folder / f"{name}.json").write_text(json.dumps(document))
