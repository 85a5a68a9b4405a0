"""Names and addresses of the box. They exist only inside network namespaces that have no route out.

The hub (namespace `samite0`) holds the control plane and a bridge; node N is a namespace `samiteN` with one link to that bridge.
"""

CLUSTER = "samite-box"
"""Name of the cluster, of our cgroup in every hierarchy, and the marker in the environment of every process we start."""

HUB_NAMESPACE = "samite0"
HUB = "10.77.0.1"
API_PORT = 6443
SERVICE_RANGE = "10.79.0.0/24"
API_SERVICE = "10.79.0.1"
DNS_SERVICE = "10.79.0.10"
ALL_PODS = "10.78.0.0/16"
MAX_NODES = 9


def node_name(number: int) -> str:
    """Kubernetes' name of a node, counted from 1."""
    return f"node{number}"


def node_namespace(number: int) -> str:
    """The node's network namespace."""
    return f"samite{number}"


def node_link(number: int) -> str:
    """The hub's end of the node's cable."""
    return f"cable{number}"


def node_address(number: int) -> str:
    """The node's address on the bridge."""
    return f"10.77.0.{10 + number}"


def pod_range(number: int) -> str:
    """Addresses of the node's pods."""
    return f"10.78.{number}.0/24"
