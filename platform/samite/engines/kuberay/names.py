"""Names, labels and annotations of everything that a run has in Kubernetes. Deterministic: made again, they are the same.

RayCluster   <run>-s<NN>-<hash5>             lifecycle's cluster id; 46 characters at most
Secret       <cluster>-ray-token             Ray's token, key `auth_token`
Lease        <run>-heartbeat                 heartbeats and results of the driver, control documents of the operator
ServiceAccount, Role, RoleBinding  <run>-worker   may get and patch that Lease, nothing else
Service      <cluster>-head-svc              made by KubeRay
"""

RUN = "samite.dev/run"
RUN_UID = "samite.dev/run-uid"
STAGE = "samite.dev/stage"
CLUSTER = "samite.dev/cluster"
ROLE = "samite.dev/role"
"""`head` or `worker`, on pods."""

FINALIZER = "samite.dev/finalizer"
"""On each run, until its clusters are gone."""
HOLD = "samite.dev/runs-are-here"
"""On the RoleBinding by which the operator holds its rights in a namespace while runs there carry `FINALIZER`."""

CANCEL = "samite.dev/cancel"
SUBMITTED_BY = "samite.dev/submitted-by"
"""On the run: who made it. Said once; the admission policy of the chart compares it with the login."""
REQUEST_PREFIX = "samite.dev/request-"
EXCLUDED = "samite.dev/excluded-nodes"
"""On the RayCluster: the node names that its workers' affinity leaves out, for people; the affinity is what counts."""

RAY_CLUSTER_LABEL = "ray.io/cluster"
RAY_NODE_TYPE_LABEL = "ray.io/node-type"
HOSTNAME_LABEL = "kubernetes.io/hostname"
ZONE_LABELS = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
"""First label found names the rack of a node: nodes of one rack are not all blamed for a broken switch."""

TOKEN_KEY = "auth_token"  # noqa: S105 - the name of a key
WORKER_GROUP = "workers"
RAY_CONTAINER_HEAD = "ray-head"
RAY_CONTAINER_WORKER = "ray-worker"
HOME = "/var/lib/samite"
"""SAMITE_HOME of the pods: an emptyDir with the same layout as the local engine's."""
DASHBOARD_PORT = 8265


def token_secret(cluster_id: str) -> str:
    """Secret with Ray's token."""
    return f"{cluster_id}-ray-token"


def worker_account(run: str) -> str:
    """Service account, role and role binding of the run's pods."""
    return f"{run}-worker"


def head_service(cluster_id: str) -> str:
    """The Service that KubeRay makes for the head."""
    return f"{cluster_id}-head-svc"


def dashboard(cluster_id: str, namespace: str) -> str:
    """URL of Ray's dashboard inside the cluster."""
    return f"http://{head_service(cluster_id)}.{namespace}.svc:{DASHBOARD_PORT}"


def run_folder(run: str) -> str:
    """The run folder in every pod."""
    return f"{HOME}/runs/{run}"


def run_labels(run: str, uid: str) -> dict[str, str]:
    """Labels by which everything of one run is found."""
    return {RUN: run, RUN_UID: uid}
