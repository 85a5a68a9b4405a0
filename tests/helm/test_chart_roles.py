"""Rights: golden files for both scopes, and rules that hold for every sample of values."""

import os
from pathlib import Path

import pytest
from chart import CI_FILES, Document, Helm, ci_file, of_kind, rules_text

GOLDEN = Path(__file__).parent / "golden"
OPERATOR = "samite-operator"


@pytest.mark.parametrize("name", ["default", "namespaced", "cluster", "kueue"])
def test_the_operator_has_exactly_the_rights_of_the_golden_file(helm: Helm, name: str):
    """After a wanted change: UPDATE_GOLDEN=1 pytest tests/helm/test_chart_roles.py, and read the difference."""
    found = rules_text(helm.objects(ci_file(name)), OPERATOR)
    file = GOLDEN / f"rights-{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


def test_people_have_exactly_the_rights_of_the_golden_file(helm: Helm):
    roles = [role for role in of_kind(helm.objects(), "ClusterRole") if role["metadata"]["name"].startswith("samite-")]
    lines = [
        f"{role['metadata']['name']}: {','.join(rule['resources'])}: {' '.join(rule['verbs'])}\n"
        for role in roles
        for rule in role["rules"]
    ]
    file = GOLDEN / "rights-people.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text("".join(lines), encoding="utf-8")
    assert "".join(lines) == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", CI_FILES, ids=lambda file: file.stem)
def test_no_role_has_a_wildcard_reads_secrets_or_grants_more_than_it_holds(helm: Helm, file: Path):
    for role in _roles(helm.objects(file)):
        for rule in role["rules"]:
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], role["metadata"]["name"]
            assert {"escalate", "bind", "impersonate"}.isdisjoint(rule["verbs"]), role["metadata"]["name"]
            assert "pods/exec" not in rule["resources"], role["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert set(rule["verbs"]) == {"create"} or (set(rule["verbs"]) == {"get"} and rule.get("resourceNames"))


def test_approving_is_a_right_of_its_own(helm: Helm):
    holders = {role["metadata"]["name"] for role in _roles(helm.objects()) for rule in role["rules"] if "approve" in rule["verbs"]}
    assert holders == {"samite-approver"}


def test_in_namespaced_mode_nothing_is_granted_beyond_the_served_namespaces(helm: Helm):
    text = rules_text(helm.objects(ci_file("namespaced")), OPERATOR)
    beyond = [line for line in text.splitlines() if line.startswith("every namespace")]
    assert {line.split(": ")[1].split()[1] for line in beyond} <= {
        "nodes",
        "customresourcedefinitions",
        "clustertrainingruntimes",
        "nodeblames",
        "nodeblames/status",
    }


def test_the_operator_may_grant_what_it_grants_to_workers(helm: Helm):
    """The API server lets nobody make a role that holds more than they hold themselves."""
    leases = [line for line in rules_text(helm.objects(), OPERATOR).splitlines() if " leases:" in line and "samite-system" in line]
    assert any({"get", "patch"} <= set(line.split(": ")[-1].split()) for line in leases)


def _roles(objects: list[Document]) -> list[Document]:
    return [*of_kind(objects, "Role"), *of_kind(objects, "ClusterRole")]
