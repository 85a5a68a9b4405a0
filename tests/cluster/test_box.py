"""The box itself: it is a cluster, it breaks as a cluster breaks, it mends, and it leaves nothing. Limits are generous: two busy cores."""

import time

import pytest
from box import network
from box.cluster import Cluster
from box.folders import REPOSITORY
from box.images import PYTHON_IMAGE
from box.kubectl import Kubectl
from box.waiting import until

pytestmark = pytest.mark.cluster
WAIT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"


def deployment(name: str, *, replicas: int, program: str = WAIT) -> dict:
    """Pods of Python that wait, one a node if possible, that leave a lost node after a second."""
    lost = [
        {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for why in ("not-ready", "unreachable")
    ]
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": name}},
    }
    container = {"name": "main", "image": PYTHON_IMAGE, "command": ["python", "-c", program], "resources": {"requests": {"cpu": "10m"}}}
    pod = {"containers": [container], "tolerations": lost, "topologySpreadConstraints": [spread], "terminationGracePeriodSeconds": 2}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def placed(kubectl: Kubectl) -> list[str]:
    """Nodes of the ready pods that nobody is deleting, one entry a pod."""
    nodes = []
    for pod in kubectl.items("pods"):
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))
        if ready and "deletionTimestamp" not in pod["metadata"]:
            nodes.append(pod["spec"]["nodeName"])
    return nodes


@pytest.fixture
def spread(cluster: Cluster, kubectl: Kubectl, namespace: str) -> Kubectl:
    """kubectl in a namespace with a pod on each node."""
    inside = kubectl.within(namespace)
    inside.apply(deployment("wait", replicas=3))
    until(lambda: len(set(placed(inside))) == 3, "a pod on each node", limit_s=60)
    return inside


def test_pods_of_all_nodes_reach_each_other_the_api_and_names(cluster: Cluster, kubectl: Kubectl, namespace: str):
    inside = kubectl.within(namespace)
    serve = "import http.server as h; h.ThreadingHTTPServer(('', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
    inside.apply(deployment("serve", replicas=3, program=serve))
    inside("expose", "deployment", "serve", "--port=80", "--target-port=8000")
    until(lambda: len(set(placed(inside))) == 3, "a server on each node", limit_s=60)
    pod = inside.items("pods", "-l", "app=serve")[0]["metadata"]["name"]
    ask = f"import urllib.request as u; print(u.urlopen('http://serve.{namespace}.svc.cluster.local', timeout=5).status)"
    until(lambda: inside("exec", pod, "--", "python", "-c", ask).strip() == "200", "the service to answer", limit_s=30)
    assert inside("exec", pod, "--", "python", "-c", "import samite; print(samite.__file__)").startswith(str(REPOSITORY))
    assert inside("auth", "can-i", "list", "pods", f"--as=system:serviceaccount:{namespace}:default", check=False).strip() == "no"


def test_a_power_cut_is_noticed_pods_move_and_the_node_comes_back(cluster: Cluster, spread: Kubectl):
    cluster.node(2).kill()
    begun_s = time.monotonic()
    not_ready_s = cluster.wait_not_ready(2, limit_s=40)
    until(lambda: len(placed(spread)) == 3 and "node2" not in placed(spread), "the pod to be replaced elsewhere", limit_s=60)
    print(f"NotReady after {not_ready_s:.1f} s, pod replaced after {time.monotonic() - begun_s:.1f} s")
    stuck = [pod for pod in spread.items("pods") if pod["spec"]["nodeName"] == "node2"]
    assert all("deletionTimestamp" in pod["metadata"] for pod in stuck)
    back_s = cluster.start_node(2)
    print(f"Ready {back_s:.1f} s after its start")
    until(lambda: all(pod["spec"]["nodeName"] != "node2" for pod in spread.items("pods")), "the lost pod to be gone", limit_s=60)


def test_a_partition_a_hung_node_and_a_lost_way_to_the_api_are_noticed_and_heal(cluster: Cluster):
    one, two, three = cluster.nodes
    one.partition()
    two.hang()
    three.cut_api()
    try:
        noticed = [cluster.wait_not_ready(number, limit_s=40) for number in (1, 2, 3)]
        with pytest.raises(ConnectionRefusedError):  # packets still arrive at the hub, where nothing listens on this port
            network.connect("samite3", cluster.hub_address, 81, timeout_s=5)
        with pytest.raises(TimeoutError):
            network.connect("samite3", cluster.hub_address, 6443, timeout_s=2)
        assert three.processes("kubelet")
    finally:
        one.heal()
        two.unhang()
        three.heal()
    healed = [cluster.wait_ready(number, limit_s=60) for number in (1, 2, 3)]
    print(f"noticed after {noticed[0]:.1f} s, all Ready again after {sum(healed):.1f} s")


def test_a_restart_of_the_api_server_and_a_compaction_disturb_no_pod(cluster: Cluster, spread: Kubectl):
    before = {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in spread.items("pods")}
    revision = cluster.control_plane.compact_etcd()
    ready_s = cluster.restart_api_server(down_for_s=5)
    print(f"API server ready {ready_s:.1f} s after its start, history before revision {revision} gone")
    time.sleep(3)
    assert {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in spread.items("pods")} == before
    watched = spread("get", "--raw", f"/api/v1/namespaces/{spread.namespace}/pods?watch=1&resourceVersion=1&timeoutSeconds=2", check=False)
    assert "410" in watched or "too old" in watched.lower() or "Expired" in watched


def test_a_node_may_have_a_clock_of_its_own(cluster: Cluster, spread: Kubectl):
    cluster.set_clock(3, off_s=600)
    try:
        spread("delete", "pod", "--field-selector=spec.nodeName=node3", "--wait=true")
        until(lambda: len(set(placed(spread))) == 3, "a new pod on node3", limit_s=60)
        named = {
            pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in spread.items("pods") if "deletionTimestamp" not in pod["metadata"]
        }
        clocks = {
            node: float(spread("exec", named[node], "--", "python", "-c", "import time; print(time.time())")) for node in ("node1", "node3")
        }
        assert clocks["node3"] - clocks["node1"] == pytest.approx(600, abs=20)
    finally:
        cluster.set_clock(3, off_s=0)
