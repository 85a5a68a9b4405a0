"""The node agent in the chart: off unless asked for, restricted, without any right, and the runtimes know where it is."""

import json
from pathlib import Path

import pytest
from chart import MONITORING, Document, Helm, ci_file, of_kind, pod_specs, rules_text

ON = "agent.enabled=true"


@pytest.fixture(scope="module")
def objects(helm: Helm) -> list[Document]:
    return helm.objects(sets=[ON, "monitoring.podMonitor=true"], apis=[MONITORING])


def component(objects: list[Document]) -> dict[str, Document]:
    return {item["kind"]: item for item in objects if item["metadata"]["name"] == "samite-agent"}


def test_nothing_of_it_is_there_unless_asked_for(helm: Helm):
    assert component(helm.objects()) == {}
    assert "SAMITE_AGENT" not in helm.template().stdout


def test_it_is_one_pod_per_node_under_the_restricted_standard(objects: list[Document]):
    ((_, spec),) = [(name, spec) for name, spec in pod_specs(objects) if name == "DaemonSet/samite-agent"]
    assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC", "volumes"))
    assert spec["securityContext"]["runAsNonRoot"] is True
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert all(port.get("hostPort") is None for port in container["ports"])
    assert {"requests", "limits"} <= set(container["resources"])


def test_it_has_no_token_and_no_right(objects: list[Document]):
    parts = component(objects)
    assert parts["ServiceAccount"]["automountServiceAccountToken"] is False
    assert parts["DaemonSet"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert rules_text(objects, "samite-agent") == ""


def test_the_operators_rights_and_service_are_the_same_with_it(helm: Helm, objects: list[Document]):
    assert rules_text(objects, "samite-operator") == rules_text(helm.objects(), "samite-operator")
    (service,) = [item for item in of_kind(objects, "Service") if item["metadata"]["name"] == "samite-operator"]
    labels = component(objects)["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= labels.items()


def test_what_a_rank_sends_stays_on_its_node_and_comes_through_the_policy(objects: list[Document]):
    parts = component(objects)
    service = parts["Service"]["spec"]
    labels = parts["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert service["internalTrafficPolicy"] == "Local"
    assert service["selector"].items() <= labels.items()
    (port,) = service["ports"]
    (ports,) = [c["ports"] for c in parts["DaemonSet"]["spec"]["template"]["spec"]["containers"]]
    assert {p["name"]: p.get("protocol", "TCP") for p in ports}[port["targetPort"]] == port["protocol"] == "UDP"
    policy = parts["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["ingress"][0]["ports"] == [{"port": port["port"], "protocol": "UDP"}]


def runtimes(objects: list[Document]) -> dict[str, Document]:
    data = next(item["data"] for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "samite-runtimes")
    return {Path(name).stem: json.loads(text)["spec"] for name, text in data.items()}


def test_every_runtime_of_the_chart_tells_its_ranks_where_the_agent_is_and_keeps_its_own_variables(helm: Helm, objects: list[Document]):
    before, after = runtimes(helm.objects()), runtimes(objects)
    where = {"name": "SAMITE_AGENT", "value": "samite-agent.samite-system.svc:8126"}
    for name, spec in after.items():
        own = before[name]["worker"].get("env", [])
        assert spec["worker"] == {**before[name]["worker"], "env": [where, *own]}
        assert spec["head"] == before[name]["head"]


def test_devices_are_shown_to_it_only_with_their_runtime_class(helm: Helm, objects: list[Document]):
    assert "NVIDIA" not in json.dumps(component(objects)["DaemonSet"])
    with_devices = component(helm.objects(sets=[ON, 'agent.runtimeClassName="nvidia"']))["DaemonSet"]
    spec = with_devices["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"} in spec["containers"][0]["env"]


def test_it_sends_to_the_endpoint_of_the_chart_and_takes_the_command_of_the_package(helm: Helm):
    found = component(helm.objects(sets=[ON, 'telemetry.otlp.endpoint="http://c:4317"']))["DaemonSet"]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4317"} in container["env"]
    from samite.engines.node_agent.__main__ import _parser

    options = _parser().parse_args(container["command"][3:])
    assert (options.host, options.port, options.heartbeat_port) == ("0.0.0.0", 8080, 8126)


@pytest.mark.parametrize("name", ["namespaced", "airgapped", "kueue"])
def test_it_renders_beside_every_sample_of_values(helm: Helm, name: str):
    parts = component(helm.objects(ci_file(name), sets=[ON]))
    assert {"DaemonSet", "Service", "ServiceAccount"} <= set(parts)
    labels = parts["DaemonSet"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/instance"] == "samite"


def test_unknown_values_of_it_are_refused(helm: Helm):
    refused = helm.template(sets=[ON, "agent.hostNetwork=true"])
    assert refused.returncode != 0
    assert "hostNetwork" in refused.stderr
