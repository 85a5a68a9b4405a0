"""What the chart renders: restricted pods, one operator, no object without need, the same for every Kubernetes that is supported."""

import re
from pathlib import Path

import pytest
from chart import CI_FILES, MONITORING, NAMESPACE, Document, Helm, ci_file, of_kind, pod_specs

VERSIONS = ["1.31.0", "1.34.0", "1.37.2"]
MONITORS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
ALLOWED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


@pytest.fixture(scope="module", params=CI_FILES, ids=lambda file: file.stem)
def objects(helm: Helm, request: pytest.FixtureRequest) -> list[Document]:
    return helm.objects(request.param, apis=[MONITORING])


def test_every_pod_meets_the_restricted_standard(objects: list[Document]):
    specs = list(pod_specs(objects))
    assert specs
    for name, spec in specs:
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert all(set(volume) - {"name"} <= ALLOWED_VOLUMES for volume in spec.get("volumes", ())), name
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert all(port.get("hostPort") is None for port in container.get("ports", ())), name
            assert {"requests", "limits"} <= set(container["resources"]), name


def test_every_object_carries_the_release_in_its_labels(objects: list[Document]):
    """But for the definitions: they are generated, the same for every release, and outlive it."""
    for document in (item for item in objects if item["kind"] != "CustomResourceDefinition"):
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "samite", document["metadata"]["name"]
        assert labels["app.kubernetes.io/instance"] == "samite", document["metadata"]["name"]


def test_no_object_comes_twice_and_none_is_empty(objects: list[Document]):
    names = [(item["apiVersion"], item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    assert all(set(document) - {"apiVersion", "kind", "metadata"} for document in objects if document["kind"] != "ServiceAccount")


def test_there_is_one_operator_and_the_old_one_goes_first(objects: list[Document]):
    (deployment,) = of_kind(objects, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    (service,) = of_kind(objects, "Service")
    assert service["spec"]["selector"] == selector


def test_settings_are_what_the_operator_reads(objects: list[Document]):
    from samite_operators.settings import Settings
    from samite_operators.settings import __doc__ as settings_page

    settings = next(item["data"] for item in of_kind(objects, "ConfigMap") if "SAMITE_NAMESPACES" in item["data"])
    read = Settings.from_environment({**settings, "SAMITE_OPERATOR_NAMESPACE": NAMESPACE})
    bindings = {item["metadata"]["namespace"]: item for item in of_kind(objects, "RoleBinding") if item["roleRef"]["kind"] == "ClusterRole"}
    assert set(bindings) == set(read.namespaces)
    assert read.clusterwide == (not bindings) == (not read.namespace_role)
    # What the operator binds once more while runs are there is what the chart binds: otherwise the API server would refuse it as an escalation.
    for item in bindings.values():
        assert item["roleRef"]["name"] == read.namespace_role
        assert item["subjects"] == [{"kind": "ServiceAccount", "name": read.service_account, "namespace": NAMESPACE}]
    assert read.lease_name == "samite-operator"
    documented = set(re.findall(r"`(SAMITE_\w+|OTEL_\w+)`", settings_page or ""))
    assert set(settings) <= documented


def test_the_operator_is_told_of_the_secrets_that_its_role_lets_it_read(helm: Helm):
    from samite_operators.settings import Settings

    objects = helm.objects(sets=['storage.secretNames=["team-s3","other-s3"]'])
    settings = next(item["data"] for item in of_kind(objects, "ConfigMap") if "SAMITE_NAMESPACES" in item["data"])
    read = Settings.from_environment({**settings, "SAMITE_OPERATOR_NAMESPACE": NAMESPACE})
    rules = [
        rule
        for role in of_kind(objects, "ClusterRole")
        for rule in role["rules"]
        if rule["resources"] == ["secrets"] and "get" in rule["verbs"]
    ]
    assert {frozenset(rule["resourceNames"]) for rule in rules} == {read.storage_secrets} == {frozenset({"team-s3", "other-s3"})}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["default", "cluster"])
def test_every_supported_kubernetes_gets_the_same_objects(helm: Helm, name: str, version: str):
    newest = helm.objects(ci_file(name), apis=[MONITORING], kube_version=VERSIONS[-1])
    assert [_without_chance(item) for item in helm.objects(ci_file(name), apis=[MONITORING], kube_version=version)] == [
        _without_chance(item) for item in newest
    ]


def test_monitors_are_made_only_where_their_api_exists(helm: Helm):
    assert {item["kind"] for item in helm.objects(ci_file("cluster"))}.isdisjoint(MONITORS)
    assert {item["kind"] for item in helm.objects(ci_file("cluster"), apis=[MONITORING])} >= MONITORS


def test_a_digest_wins_over_the_tag_and_the_chart_version_stands_in_for_both(helm: Helm):
    def image(*settings: str) -> str:
        (deployment,) = of_kind(helm.objects(sets=settings), "Deployment")
        return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])

    digest = "sha256:" + "a" * 64
    assert image() == "ghcr.io/samite-dev/operator:0.1.0"
    assert image('operator.image.tag="1.2.3"') == "ghcr.io/samite-dev/operator:1.2.3"
    assert image('operator.image.tag="1.2.3"', f'operator.image.digest="{digest}"') == f"ghcr.io/samite-dev/operator@{digest}"


def test_a_changed_setting_starts_a_new_pod_and_an_unchanged_one_does_not(helm: Helm):
    def mark(*settings: str) -> str:
        (deployment,) = of_kind(helm.objects(sets=settings, again=True), "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["samite.dev/settings"])

    assert mark() == mark()
    assert mark() != mark("operator.turnSeconds=5")


def test_no_key_is_made_where_one_is_named(helm: Helm):
    assert [item["metadata"]["name"] for item in of_kind(helm.objects(), "Secret")] == ["samite-token-key"]
    assert of_kind(helm.objects(sets=['operator.tokenKeySecret="ours"']), "Secret") == []


def test_the_operator_reaches_ray_storage_and_the_api_server_and_nothing_else(helm: Helm):
    (policy,) = of_kind(helm.objects(ci_file("airgapped")), "NetworkPolicy")
    reached = [(rule.get("to"), [port["port"] for port in rule["ports"]]) for rule in policy["spec"]["egress"]]
    assert [ports for _, ports in reached] == [[53, 53], [6443], [8265], [9000]]
    assert all(to for to, _ in reached)
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    (source,) = policy["spec"]["ingress"][0]["from"]
    assert source == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def test_a_release_of_another_name_has_names_of_its_own(helm: Helm):
    rendered = helm.run("template", "blue", str(Path(__file__).parents[2] / "helm" / "samite"), "--namespace", NAMESPACE)
    assert rendered.returncode == 0, rendered.stderr
    assert "name: blue-samite-operator" in rendered.stdout
    assert "samite:samite-system:blue:operator" in rendered.stdout


def _without_chance(document: Document) -> Document:
    """The key of the tokens is random in each rendering without a cluster."""
    return document | {"data": None} if document["kind"] == "Secret" else document
