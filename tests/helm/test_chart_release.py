"""Release size as Helm stores it, the alerts' metrics, and what the Jobs are told."""

import base64
import gzip
import json
import re

import pytest
import yaml
from chart import CHART, CI_FILES, MONITORING, Helm, ci_file, of_kind, rules_text

from samite.dashboards.boards import BOARDS
from samite.dashboards.rules import rule_groups

LIMIT_BYTES = 800_000
"""A release is one Secret, and a Secret holds 1 MiB."""


@pytest.mark.parametrize("file", CI_FILES, ids=lambda file: file.stem)
def test_the_release_fits_into_its_secret_with_room_to_spare(helm: Helm, file):
    """Helm stores chart and manifest as JSON, gzipped, in base64, which the API server encodes once more."""
    sources = {
        str(path.relative_to(CHART)): base64.b64encode(path.read_bytes()).decode()
        for path in CHART.rglob("*")
        if path.is_file() and "ci" not in path.relative_to(CHART).parts
    }
    document = json.dumps({"chart": sources, "manifest": helm.template(file).stdout}).encode()
    size = len(base64.b64encode(base64.b64encode(gzip.compress(document))))
    assert size < LIMIT_BYTES, f"{size} bytes"


def test_the_prometheus_rule_holds_every_alert(helm: Helm):
    (rule,) = of_kind(helm.objects(ci_file("cluster"), apis=[MONITORING]), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8")) == rule_groups()


def test_each_dashboard_is_a_config_map_that_grafana_finds_and_reads(helm: Helm):
    found = [item for item in of_kind(helm.objects(ci_file("cluster")), "ConfigMap") if "grafana_dashboard" in item["metadata"]["labels"]]
    boards = {name: json.loads(text) for item in found for name, text in item["data"].items()}
    assert {name: board["title"] for name, board in boards.items()} == {f"{board.uid}.json": board.title for board in BOARDS}
    assert {item["metadata"]["annotations"]["grafana_folder"] for item in found} == {"Samite"}
    assert max(len(json.dumps(item)) for item in found) < 200_000


def test_dashboards_are_off_until_asked_for(helm: Helm):
    assert not [
        item for item in of_kind(helm.objects(ci_file("default")), "ConfigMap") if "grafana_dashboard" in item["metadata"]["labels"]
    ]


@pytest.mark.parametrize("name", ["default", "namespaced", "cluster", "kueue"])
def test_the_test_of_a_release_asks_for_every_right_that_its_roles_give(helm: Helm, name: str, tmp_path):
    from samite_operators.install.release import Release

    objects = helm.objects(ci_file(name))
    document = next(item["data"]["release.json"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "samite-test")
    (tmp_path / "release.json").write_text(document)
    release = Release.read(tmp_path)
    asked = {(right.namespace, right.group or "core", right.resource, right.verb) for right in release.rights}
    granted = set()
    for line in rules_text(objects, "samite-operator").splitlines():
        place, rule, verbs = re.fullmatch(r"(.*?): (.*): (.*)", line).groups()
        group, resources = rule.split(" named ")[0].split(" ")
        namespace = "" if place.startswith("every") else place
        granted |= {(namespace, group, resource, verb) for resource in resources.split(",") for verb in verbs.split()}
    assert asked == granted


def test_runtimes_get_the_worker_image_where_they_name_none(helm: Helm):
    items = [{"name": "ours", "spec": {"image": "registry.internal/train:1"}}, {"name": "plain", "spec": {}}]
    objects = helm.objects(sets=[f"runtimes.items={json.dumps(items)}"])
    (documents,) = [item["data"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "samite-runtimes"]
    assert json.loads(documents["ours.json"])["spec"]["image"] == "registry.internal/train:1"
    assert json.loads(documents["plain.json"])["spec"]["image"] == "ghcr.io/samite-dev/worker:0.1.0"


def test_the_runtimes_of_the_chart_are_runtimes_that_the_operator_understands(helm: Helm):
    from samite.spec.runtime import ClusterTrainingRuntime

    (documents,) = [item["data"] for item in of_kind(helm.objects(), "ConfigMap") if item["metadata"]["name"] == "samite-runtimes"]
    found = [ClusterTrainingRuntime.model_validate_json(text) for text in documents.values()]
    assert [item.metadata.name for item in found] == ["default", "gpu-generic", "gpu-h100-rdma"]
    assert all(item.spec.description for item in found)


def test_hooks_clean_up_after_themselves(helm: Helm):
    hooks = [item for item in helm.objects(ci_file("cluster")) if "helm.sh/hook" in item["metadata"].get("annotations", {})]
    assert hooks
    assert {item["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for item in hooks} == {"before-hook-creation,hook-succeeded"}
