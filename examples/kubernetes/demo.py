"""`make demo-kubernetes`: the chart in a real cluster, the quickstart in Ray pods, one node cut off from power, and the proof that nothing was lost.

    the cluster of KUBECONFIG, or the box of tests/cluster
      ── helm install ── an S3 server as a pod ── samite data push ── samite submit ── status -w ── a node dies ── report

In the box a node really loses its power. In a cluster of KUBECONFIG no node is touched: a worker's pod is deleted with no grace instead. KubeRay
must be there, and the images of this version must be known to its nodes (`kind load docker-image`, README.md).
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from clusters import SYSTEM, TEAM, Target, boxed, foreign
from proof import ROOT, Demo, corpus_of_home, in_stage_two, say

HERE = ROOT / "examples" / "kubernetes"
RUN, BUCKET = "quickstart", "samite"
KEY, SECRET = "demo-key", "demo-secret"
KILL_AFTER_STEPS = 12
LIMIT_S = 1200.0

os.environ.setdefault("SAMITE_HOME", str(ROOT / ".samite"))


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave chart, namespaces and (without KUBECONFIG) the box in place")
    options = parser.parse_args()
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(foreign() if os.environ.get("KUBECONFIG") else boxed(keep=options.keep))
        if not options.keep:
            stack.callback(clean_up, target)
        stack.push(Witness(target))
        install(target)
        endpoint = stack.enter_context(forwarded(target))
        os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1", AWS_ENDPOINT_URL_S3=endpoint)
        demo = Demo(run=RUN, flags=("--kubeconfig", str(target.kubeconfig), "-n", TEAM))
        push_corpus(demo)
        return train(demo, target, began_s)


class Witness:
    """Says what the cluster looks like when the demo fails, while it still stands."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is None or kind is KeyboardInterrupt:
            return
        for words in (
            ("get", "pods", "--all-namespaces", "-o", "wide"),
            ("get", "events", "-n", TEAM, "--sort-by=.lastTimestamp"),
            ("-n", SYSTEM, "logs", "deployment/samite-operator", "--tail=40"),
        ):
            with contextlib.suppress(subprocess.SubprocessError, SystemExit):
                kubectl(self._target, *words, limit_s=30, echo=True)


def install(target: Target) -> None:
    """The chart, a namespace for the team, and storage in it."""
    say("\n-- the chart, and a namespace under the restricted pod security standard\n")
    for name in (SYSTEM, TEAM):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        apply(target, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    identities = {"identities": [{"name": "demo", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}]}
    apply(target, secret("samite-s3-identities", {"s3.json": json.dumps(identities)}))
    storage = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    apply(target, secret("samite-storage", storage | {"AWS_ENDPOINT_URL_S3": f"http://samite-s3.{TEAM}.svc:8333"}))
    for document in yaml.safe_load_all((HERE / "s3.yaml").read_text(encoding="utf-8")):
        if document["kind"] == "Deployment":
            container = document["spec"]["template"]["spec"]["containers"][0]
            container["image"], container["command"] = target.s3_image, list(target.s3_command)
        document["metadata"]["namespace"] = TEAM
        apply(target, document)
    run(
        target.helm, "upgrade", "--install", "samite", str(ROOT / "helm" / "samite"), "--namespace", SYSTEM,
        "--set", f"scope.namespaces={{{TEAM}}}", "--set", "storage.secretNames={samite-storage}",
        "--set", "networkPolicy.storagePorts={443,8333}", "--wait", "--timeout", "5m",
        target=target, limit_s=330,
    )  # fmt: skip
    kubectl(target, "-n", TEAM, "rollout", "status", "deployment/samite-s3", "--timeout=120s", limit_s=130)


def push_corpus(demo: Demo) -> None:
    """The corpus goes where every pod reaches it."""
    import boto3

    from samite.cli.data import prepare_builtin

    say("\n-- the corpus: this machine's Python sources and texts, and handwritten digits\n")
    folder = prepare_builtin("builtin:quickstart")
    client = boto3.client("s3")
    if BUCKET not in {one["Name"] for one in client.list_buckets().get("Buckets", [])}:
        client.create_bucket(Bucket=BUCKET)
    demo.samite("data", "push", str(folder), f"s3://{BUCKET}/corpora/quickstart")


def train(demo: Demo, target: Target, began_s: float) -> int:
    """Submit, watch, kill, prove."""
    from samite.cli import place, watch

    say("\n-- the run\n")
    demo.clear_earlier_run()
    demo.samite("submit", "-f", str((HERE / "run.yaml").relative_to(ROOT)))
    client = place.engine(place=place.Place(kubeconfig=str(target.kubeconfig), namespace=TEAM))
    handle = client.find(RUN)
    say(f"$ samite {' '.join(demo.flags)} status {RUN} -w      (this screen; Ctrl-C leaves the run alone)\n")
    struck: list[str] = []

    def strike(status: dict[str, Any]) -> None:
        if not struck and in_stage_two(status, steps=KILL_AFTER_STEPS):
            struck.append(target.kill_node_of(worker_pod(target)))
            say(f"\n!! {struck[0]}\n")

    try:
        watch.watch_run(client, handle, each_turn=strike, limit_s=LIMIT_S)
    except KeyboardInterrupt:
        say(f"\nThe run goes on without this screen. End it: {sys.executable} -m samite {' '.join(demo.flags)} cancel {RUN} --yes")
        return 130
    say("")
    kubectl(target, "-n", TEAM, "get", "trun", "-o", "wide", echo=True)
    status = client.status(handle)
    with client.records(handle) as records:
        demo.prove(status, records, corpus_of_home())
    report = demo.samite("report", RUN).strip()
    demo.summary(status, report, took_s=time.monotonic() - began_s, since="the first sign of it")
    return 1 if demo.problems else 0


def worker_pod(target: Target) -> str:
    """A pod that trains, on a node that has neither the Ray head nor the storage: losing those is another story (L3; an S3 server of one pod)."""
    lease = json.loads(kubectl(target, "-n", TEAM, "get", "lease", f"{RUN}-heartbeat", "-o", "json"))
    beats = json.loads(lease["metadata"]["annotations"]["samite.dev/heartbeats"])
    training = [str(beat["node"]) for beat in (beats["ranks"] if isinstance(beats, dict) else beats)]
    pods = json.loads(kubectl(target, "-n", TEAM, "get", "pods", "-o", "json"))["items"]
    machine = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}
    others = {machine[name] for name in machine if name.startswith("samite-s3") or "-head-" in name}
    return next((name for name in training if machine.get(name) not in others), training[-1])


@contextlib.contextmanager
def forwarded(target: Target) -> Iterator[str]:
    """The S3 server's endpoint for this machine."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [target.kubectl, f"--kubeconfig={target.kubeconfig}", "-n", TEAM, "port-forward", "service/samite-s3", f"{port}:8333"]
    # A forward ends when its pod's connection breaks; it is started again for as long as the demo runs.
    keeper = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys, time\nwhile True:\n    subprocess.run(sys.argv[1:])\n    time.sleep(1)", *command],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(150):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(keeper.pid, 9)
        keeper.wait(10)


def clean_up(target: Target) -> None:
    """Take down what the demo brought up; what cannot be removed is named."""
    for words in (
        ("-n", TEAM, "delete", "trainingruns", "--all", "--timeout=60s", "--ignore-not-found"),
        ("delete", "namespace", TEAM, "--wait=false", "--ignore-not-found"),
    ):
        with contextlib.suppress(subprocess.SubprocessError, SystemExit):
            kubectl(target, *words, limit_s=90)
    with contextlib.suppress(subprocess.SubprocessError, SystemExit):
        run(target.helm, "uninstall", "samite", "--namespace", SYSTEM, "--ignore-not-found", target=target)
    with contextlib.suppress(subprocess.SubprocessError, SystemExit):
        kubectl(target, "delete", "namespace", SYSTEM, "--wait=false", "--ignore-not-found")


def secret(name: str, values: dict[str, str]) -> dict[str, Any]:
    """A Secret of the team."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": TEAM}, "stringData": values}


def apply(target: Target, document: dict[str, Any]) -> None:
    """Server-side apply of one document."""
    kubectl(target, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(document))


def kubectl(target: Target, *words: str, stdin: str | None = None, limit_s: float = 60, echo: bool = False) -> str:
    """One kubectl command; ends the demo with its words if it fails."""
    return run(target.kubectl, *words, target=target, stdin=stdin, limit_s=limit_s, echo=echo)


def run(tool: str, *words: str, target: Target, stdin: str | None = None, limit_s: float = 60, echo: bool | None = None) -> str:
    """kubectl or helm on the target."""
    name = Path(tool).name
    if echo or (echo is None and name == "helm"):
        say(f"$ {name} {' '.join(words)}")
    command = [tool, f"--kubeconfig={target.kubeconfig}", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        sys.exit(f"{name} {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    if echo:
        say(done.stdout.rstrip())
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
