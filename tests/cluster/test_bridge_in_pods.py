"""An attempt in real pods that share nothing: heartbeats in the Lease, a request back to the ranks, records in S3, each rank's files on its own pod.

No operator and no engine: the test writes the Lease as they do, and runs the driver in the head's pod as Ray's job server does.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from box.folders import REPOSITORY
from box.kubectl import Kubectl
from box.object_store import ObjectStore
from box.waiting import until

from samite.checkpoint import StoreOptions, open_store
from samite.checkpoint.records import read_record, recorded_files
from samite.engines.kuberay.access import access_objects, heartbeat_lease, lease_for_submission
from samite.spec import load_run
from samite.spec.attempt import ATTEMPT_VARIABLE, AttemptSpec
from samite.spec.lease import LeaseReport, read_lease
from samite_workloads.data import prepare
from samite_workloads.data.documents import Document, MemorySource

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

SUBMISSION = "micro-s00-a1"
LEASE = "micro-heartbeat"
HOME = "/tmp/samite"
STEP_S = 3.0

RUN = """
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {{name: micro}}
spec:
  seed: 3
  engine: RayCluster
  model:
    preset: tiny
    overrides: {{num_layers: 3, mla_period: 2, hidden_size: 32, vocab_size: 320, kda_num_heads: 2, kda_head_dim: 16, mla_num_heads: 2,
      mla_q_lora_rank: 16, mla_kv_lora_rank: 16, mla_nope_head_dim: 16, mla_rope_head_dim: 8, mla_v_head_dim: 16, dense_hidden_size: 64,
      num_experts: 8, latent_size: 16, expert_hidden_size: 16, shared_hidden_size: 32, balancing_bins: 100}}
  data: {{uri: "{corpus}", mixture: [{{source: text, weight: 1}}]}}
  optimizer: {{learningRate: 0.01}}
  checkpoint: {{uri: "s3://bridge/{prefix}", endpoint: "{endpoint}", insecure: true, interval: {{steps: 2}}}}
  stages:
    - {{name: short, contextLength: 48, workers: {{min: 2, max: 2}}, batch: {{tokens: 192, microBatch: 1}}, budget: {{steps: 60}}}}
"""


@pytest.fixture(scope="module")
def corpus() -> Iterator[Path]:
    """Forty short texts, in the repository's build folder: that is where pods of the box see it."""
    folder = REPOSITORY / "build" / f"bridge-corpus-{os.getpid()}"
    texts = [Document(parts=(f"{n} warp and weft " * (3 + n % 7),), origin=f"text:{n}") for n in range(40)]
    prepare(folder, [MemorySource(texts, name="text")], vocab_size=300, held_out_fraction=0.1)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def ray_pod(image: str) -> dict[str, Any]:
    """A pod template of a Ray node with a folder of its own, the run's account and the storage's credentials."""
    fields = {"SAMITE_NODE": "metadata.name", "SAMITE_NODE_ADDRESS": "status.podIP"}
    variables = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    variables += [{"name": "SAMITE_HOME", "value": HOME}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    container = {
        "name": "ray",
        "image": image,
        "env": variables,
        "envFrom": [{"secretRef": {"name": "storage"}}],
        "resources": {"requests": {"cpu": "100m", "memory": "300Mi"}, "limits": {"cpu": "2", "memory": "3Gi"}},
    }
    account = {"serviceAccountName": "micro-worker", "automountServiceAccountToken": True}
    return {"spec": {**account, "containers": [container], "terminationGracePeriodSeconds": 2}}


@pytest.fixture
def pods(kubectl: Kubectl, namespace: str, kuberay: str, s3: ObjectStore, worker_image: str) -> Kubectl:
    """kubectl in a namespace with a Ray head without CPUs and two workers, and the Lease of an attempt."""
    import ray

    inside = kubectl.within(namespace)
    s3.make_bucket("bridge")
    run = {"metadata": {"name": "micro", "namespace": namespace, "uid": "uid-1"}, "spec": {"checkpoint": {"uri": "s3://bridge/x"}}}
    objects = [document for _, document in access_objects(run)] + [heartbeat_lease(run)]
    for document in objects:
        del document["metadata"]["ownerReferences"]  # no such run exists: the garbage collector would take them away
    inside.apply(s3.secret("storage"), *objects)
    inside("patch", "lease", LEASE, "--type=merge", "-p", json.dumps(lease_for_submission(SUBMISSION)))
    start = {"object-store-memory": "80000000"}
    workers = {"groupName": "workers", "replicas": 2, "minReplicas": 0, "maxReplicas": 2}
    spec = {
        "rayVersion": ray.__version__,
        "headGroupSpec": {"rayStartParams": {**start, "num-cpus": "0", "dashboard-host": "0.0.0.0"}, "template": ray_pod(worker_image)},
        "workerGroupSpecs": [{**workers, "rayStartParams": {**start, "num-cpus": "1"}, "template": ray_pod(worker_image)}],
    }
    inside.apply({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "micro"}, "spec": spec})
    ready_s = until(
        lambda: inside.get("raycluster", "micro").get("status", {}).get("readyWorkerReplicas") == 2, "two workers", limit_s=200, every_s=1
    )
    print(f"Ray head and two workers ready after {ready_s:.0f} s, KubeRay in {kuberay}")
    return inside


def report(pods: Kubectl) -> LeaseReport:
    """What the driver says now."""
    return read_lease(pods.get("lease", LEASE)["metadata"].get("annotations") or {}, seen_at_s=0.0)


def test_an_attempt_in_pods_that_share_nothing(pods: Kubectl, s3: ObjectStore, corpus: Path, tmp_path: Path):
    prefix = f"run-{os.getpid()}"
    document = load_run(RUN.format(corpus=corpus, prefix=prefix, endpoint=s3.inside)).run.to_document()
    slow = {"faults": [{"kind": "sleep", "rank": 0, "step": 1, "seconds": STEP_S, "times": 300}]}
    attempt = AttemptSpec(
        run=document, run_uid="uid-1", stage_index=0, attempt=1, submission_id=SUBMISSION, run_folder="/elsewhere", num_workers=2,
        checkpoint_uri=f"s3://bridge/{prefix}", resume="none", environment={"SAMITE_FAULTS": json.dumps(slow)},
    )  # fmt: skip
    head = pods.items("pods", "-l", "ray.io/node-type=head")[0]["metadata"]["name"]
    workers = sorted(pod["metadata"]["name"] for pod in pods.items("pods", "-l", "ray.io/node-type=worker"))
    program = ["python", "-m", "samite_workloads.entrypoint", "--attempt-env", "--ray"]
    variables = [f"{ATTEMPT_VARIABLE}={attempt.packed()}", "RAY_ADDRESS=127.0.0.1:6379"]
    command = [
        str(pods.binary),
        f"--kubeconfig={pods.kubeconfig}",
        "-n",
        str(pods.namespace),
        "exec",
        head,
        "--",
        "env",
        *variables,
        *program,
    ]
    log = tmp_path / "driver.log"
    with log.open("w") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output)
    try:

        def goes_on(condition: bool) -> bool:
            assert driver.poll() is None, f"the driver ended with {driver.returncode}\n{log.read_text()[-5000:]}"
            return condition

        first_s = until(lambda: goes_on(report(pods).max_step >= 2), "step 2 in the Lease", limit_s=240, every_s=0.5)
        found = report(pods)
        assert (found.num_ranks, sorted(sign.heartbeat.node for sign in found.signs)) == (2, workers)
        assert all(sign.heartbeat.monotonic_s > -2 * STEP_S - 4.0 for sign in found.signs)
        renewed = []
        for _ in range(20):
            renewed.append(pods.get("lease", LEASE)["spec"]["renewTime"])
            time.sleep(0.5)
        print(f"step 2 after {first_s:.0f} s; {len(set(renewed)) - 1} renewals in 10 s")

        asked_s = time.monotonic()
        wanted = {"metadata": {"annotations": {"samite.dev/control": json.dumps({"stop.json": {"request": "stop"}})}}}
        pods("patch", "lease", LEASE, "--type=merge", "-p", json.dumps(wanted))
        assert driver.wait(120) == 0, log.read_text()[-5000:]
        print(f"stopped with its records {time.monotonic() - asked_s:.1f} s after the request (a step takes {STEP_S:.0f} s)")
    finally:
        driver.kill()
        driver.wait(10)

    ended = report(pods)
    assert ended.result is not None
    assert (ended.result.outcome, ended.result.checkpoint_id) == ("stopped", ended.checkpoint_id)
    print(log.read_text().splitlines()[-1])

    files = "cd {}/runs/micro && ls metrics attempts/{}/logs heartbeats"
    for pod in workers:
        own = pods("exec", pod, "--", "sh", "-c", files.format(HOME, SUBMISSION))
        assert own.count("rank-0.jsonl") + own.count("rank-1.jsonl") == 1, own
    whole = pods("exec", head, "--", "sh", "-c", files.format(HOME, SUBMISSION)).split()
    assert {"rank-0.jsonl", "rank-1.jsonl", "rank-0.log", "rank-1.log", "driver.log", "rank-0.json", "rank-1.json"} <= set(whole)

    options = StoreOptions(endpoint=s3.outside, insecure=True, access_key=s3.access_key, secret_key=s3.secret_key, region=s3.region)
    store = open_store(f"s3://bridge/{prefix}", options)
    records = recorded_files(store, SUBMISSION)
    assert json.loads(b"".join(read_record(store, records["result.json"])))["outcome"] == "stopped"
    assert f"step {ended.result.step} " in b"".join(read_record(store, records["logs/rank-1.log"])).decode()
    steps = [json.loads(line)["step"] for line in b"".join(read_record(store, records["metrics/rank-0.jsonl"])).splitlines()]
    assert [step for step in steps if step is not None] == list(range(1, ended.result.step + 1))
