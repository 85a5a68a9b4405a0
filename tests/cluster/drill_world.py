"""What the Kubernetes drills share: an installed release, storage with a corpus, and runs that train in real Ray pods and are looked at from outside.

Node 1 has the operators and Ray's head, so that a drill that ends a worker's node ends nothing else; each node has one worker at most.
The S3 server lives beside the control plane.
"""

import contextlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from box.addresses import node_name
from box.cluster import Cluster
from box.folders import REPOSITORY
from box.helm import Helm
from box.kubectl import Kubectl, KubectlError
from box.object_store import ObjectStore
from box.waiting import until
from drilled_run import Drilled, PatientApi

from samite.checkpoint import Store, StoreOptions, open_store
from samite.cli.app import run as samite_command
from samite.engines.kuberay import names
from samite.engines.kuberay.api import POD, RAY_CLUSTER, Document

CHART = REPOSITORY / "helm" / "samite"
CRDS = [f"{plural}.samite.dev" for plural in ("clustertrainingruntimes", "nodeblames", "trainingruns", "trainingruntimes")]
HOSTNAME = "kubernetes.io/hostname"
BUCKET, SECRET = "drills", "samite-storage"
ON_NODE_1 = {HOSTNAME: node_name(1)}
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {names.ROLE: "worker"}}}
        ]
    }
}
SMALL = {
    "head": {"cpu": "200m", "memory": "2Gi", "nodeSelector": ON_NODE_1, "terminationGracePeriodSeconds": 5},
    "worker": {"cpu": "300m", "memory": "2Gi", "terminationGracePeriodSeconds": 5, "affinity": APART},
    "allowOverrides": ["Env", "Image"],
}
MODEL = {
    "preset": "tiny",
    "overrides": {
        "num_layers": 3, "mla_period": 2, "hidden_size": 32, "vocab_size": 320, "kda_num_heads": 2, "kda_head_dim": 16, "mla_num_heads": 2,
        "mla_q_lora_rank": 16, "mla_kv_lora_rank": 16, "mla_nope_head_dim": 16, "mla_rope_head_dim": 8, "mla_v_head_dim": 16,
        "dense_hidden_size": 64, "num_experts": 8, "latent_size": 16, "expert_hidden_size": 16, "shared_hidden_size": 32, "balancing_bins": 100,
    },
}  # fmt: skip
PACE = {"faults": [{"kind": "sleep", "rank": 0, "step": 1, "seconds": 1.0, "times": 5000}]}
"""A step takes a second, most of which nobody computes: three nodes share two cores here."""
ALL = ("weights", "optimizer", "lrSchedule", "stepCounter", "tokenCounter", "dataCursor", "routerBias")


@dataclass
class World:
    """One release of the chart that serves one namespace, and the storage of its runs."""

    cluster: Cluster
    kubectl: Kubectl
    helm: Helm
    api: PatientApi
    s3: ObjectStore
    home: str
    team: str
    runs: list[Drilled] = field(default_factory=list)
    values: tuple[str, ...] = ()
    forgiven: int = 0

    @property
    def inside(self) -> Kubectl:
        """kubectl in the served namespace."""
        return self.kubectl.within(self.team)

    def install(self, chart: Path = CHART) -> None:
        """The chart by a real helm; waits until the operator is ready and the runtimes are there."""
        self.helm(
            "upgrade", "--install", "samite", str(chart), f"--namespace={self.home}", "--wait", "--timeout=240s", *self.values, limit_s=300
        )

    def operator(self) -> Document:
        """The operator's pod that is not on its way out."""
        (pod,) = [
            pod
            for pod in self.api.list(POD, self.home, labels={"app.kubernetes.io/component": "operator"})
            if "deletionTimestamp" not in pod["metadata"]
        ]
        return pod

    def refused(self) -> list[tuple[str, str]]:
        """Requests of the operator that were answered 403, in the namespaces that are there, since `forgive`."""
        account = f"system:serviceaccount:{self.home}:samite-operator"
        found = []
        for event in self.cluster.audit()[self.forgiven :]:
            place = event.get("objectRef", {}).get("namespace", self.home)
            if (
                event["user"].get("username") == account
                and event.get("responseStatus", {}).get("code") == 403
                and place in {self.home, self.team}
            ):
                found.append((event["verb"], event["requestURI"]))
        return found

    def forgive(self) -> None:
        """Refusals up to now are explained: the release was being taken away."""
        self.forgiven = len(self.cluster.audit())

    def samite(self, *words: str, code: int | None = 0) -> str:
        """`samite` as somebody types it; what it printed on both streams. `code` None: whatever it ends with."""
        flags = ["--kubeconfig", str(self.kubectl.kubeconfig), "-n", self.team]
        out = io.StringIO()
        keys = {
            "AWS_ACCESS_KEY_ID": self.s3.access_key,
            "AWS_SECRET_ACCESS_KEY": self.s3.secret_key,
            "SAMITE_STORAGE_ENDPOINT": self.s3.outside,
        }
        with pytest.MonkeyPatch.context() as shell, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            for name, value in {**keys, "AWS_REGION": self.s3.region, "SAMITE_NO_INPUT": "1"}.items():
                shell.setenv(name, value)
            found = samite_command([*flags, *words])
        assert code is None or found == code, f"samite {' '.join(words)}: exit {found}, wanted {code}\n{out.getvalue()}"
        return out.getvalue()

    def document(self, name: str, *, steps: tuple[int, ...] = (4000,), workers: tuple[int, int] = (2, 2), **spec: Any) -> Document:
        """A run of small models; a stage for each number of steps."""
        stages = [
            {
                "name": f"stage-{index}",
                "kind": "Extend" if index else "Pretrain",
                "contextLength": 48,
                "workers": {"min": workers[0], "max": workers[1]},
                "batch": {"tokens": 48 * 6, "microBatch": 1},
                "budget": {"steps": number},
                **({"handover": dict.fromkeys(ALL, "Carry")} if index else {}),
            }
            for index, number in enumerate(steps)
        ]
        whole = {
            "engine": "RayCluster",
            "seed": 3,
            "model": MODEL,
            "data": {"uri": f"s3://{BUCKET}/corpus", "mixture": [{"source": "text", "weight": 1}]},
            "optimizer": {"learningRate": 0.01},
            "checkpoint": {
                "uri": f"s3://{BUCKET}/runs/{self.team}/{name}",
                "endpoint": self.s3.inside,
                "insecure": True,
                "credentials": {"secretName": SECRET},
                "interval": {"steps": 10},
            },
            "restart": {"backoff": {"initialSeconds": 1, "capSeconds": 5}},
            "nodes": {"excludeBlamed": False},
            "env": [{"name": "SAMITE_FAULTS", "value": json.dumps(PACE)}],
            "stages": stages,
        }
        return {"apiVersion": "samite.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": name}, "spec": whole | spec}

    def submit(self, name: str, **options: Any) -> Drilled:
        """Create a run."""
        self.inside("create", "-f", "-", stdin=json.dumps(self.document(name, **options)))
        run = Drilled(self, name)
        self.runs.append(run)
        return run

    def store(self, run: str) -> Store:
        """A run's checkpoints, from outside."""
        s3 = self.s3
        options = StoreOptions(endpoint=s3.outside, insecure=True, access_key=s3.access_key, secret_key=s3.secret_key, region=s3.region)
        return open_store(f"s3://{BUCKET}/runs/{self.team}/{run}", options)

    def clear(self) -> None:
        """Delete every run and wait: the nodes are free for the next drill."""
        for run in self.runs:
            with contextlib.suppress(KubectlError):
                self.inside("delete", "trainingrun", run.name, "--ignore-not-found", "--timeout=120s", limit_s=140)
        until(lambda: not self.api.list(RAY_CLUSTER, self.team), "the clusters to be gone", limit_s=120)
        self.runs.clear()
