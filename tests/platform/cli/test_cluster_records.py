"""What a run on Kubernetes left behind: events, logs, metrics and checkpoints, while its pods live and after they are gone."""

import json
import threading
import time
from pathlib import Path

import pytest
from served_api import World

from samite.checkpoint import open_store
from samite.checkpoint.records import part_key, recorded_files
from samite.engines.kuberay.api import EVENT, LEASE, POD, TRAINING_RUN
from samite.engines.kuberay.client_events import reason_of
from samite.engines.kuberay.client_logs import OPERATOR_LABELS
from samite.engines.kuberay.client_records import RecordLog
from samite.telemetry.events import EventRecord
from samite.telemetry.instruments import Severity

PROD = ("--context", "prod")


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """The folder of the run's storage."""
    folder = tmp_path / "storage"
    folder.mkdir()
    return folder


def record(storage: Path, path: str, text: str | bytes) -> Path:
    """One object below `records/`."""
    file = storage / "records" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def event(name: str, at_s: float, *, service: str = "samite-worker", **attributes: object) -> str:
    made = EventRecord(time_unix_s=at_s, name=name, severity=Severity("INFO"), attributes=attributes, resource={"service.name": service})
    return json.dumps(made.to_document()) + "\n"


def kubernetes_event(
    world: World, name: str, *, subject: tuple[str, str, str], reason: str, at: str, kind: str = "Normal", component: str = ""
) -> None:
    world.api.put(
        EVENT,
        {
            "metadata": {"name": name, "namespace": "team-a"},
            "involvedObject": {"kind": subject[0], "name": subject[1], "uid": subject[2]},
            "reason": reason,
            "message": f"about {subject[1]}",
            "type": kind,
            "eventTime": at,
            "reportingComponent": component,
        },
    )


def pod(
    world: World,
    name: str,
    *,
    role: str = "worker",
    phase: str = "Running",
    node: str = "node-1",
    container: str = "ray-worker",
    restarts: int = 1,
) -> None:
    """A pod of the run; with role `operator`, one of the operator's."""
    operator = role == "operator"
    labels = OPERATOR_LABELS if operator else {"samite.dev/run": "demo", "samite.dev/role": role}
    world.api.put(
        POD,
        {
            "metadata": {"name": name, "namespace": "samite-system" if operator else "team-a", "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": container}]},
            "status": {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": container, "restartCount": restarts, "state": {"running": {}}}],
            },
        },
    )


def test_events_of_storage_and_of_the_cluster_are_one_story_in_the_order_of_time(shell, stored, world: World, storage: Path):
    stored(uri=f"file://{storage}")
    record(storage, "demo-s00-a1/events/events.000000.jsonl", event("samite.checkpoint.committed", 1_796_000_010.0))
    record(storage, "operator/events/00000.jsonl", event("samite.restart.decided", 1_796_000_020.123, service="samite-operator"))
    stamp = "2026-11-30T00:53:40.123000Z"
    kubernetes_event(
        world, "twice", subject=("TrainingRun", "demo", "uid-of-demo"), reason="RestartDecided", at=stamp, component="samite-operator"
    )
    kubernetes_event(
        world, "pod", subject=("Pod", "demo-s00-1a2b3-w-x", "u"), reason="FailedScheduling", at="2026-11-30T00:53:35Z", kind="Warning"
    )
    kubernetes_event(world, "foreign", subject=("Pod", "other-s00-w", "u"), reason="BackOff", at="2026-11-30T00:53:35Z", kind="Warning")
    names = [json.loads(shell(*PROD, "events", "demo", "-o", "json").stdout)["items"][i]["name"] for i in range(3)]
    assert names == ["samite.checkpoint.committed", "kubernetes.FailedScheduling", "samite.restart.decided"]


def test_the_reason_of_an_event_is_the_one_that_the_operator_posts():
    from samite.telemetry.names import EVENTS
    from samite_operators import events as operator_events

    assert [reason_of(name) for name in EVENTS] == [operator_events.reason_of(name) for name in EVENTS]


def test_without_storage_the_events_of_the_cluster_are_shown_and_what_is_missing_is_said(shell, stored, world: World):
    stored(uri="file:///proc/nothing/here")
    kubernetes_event(world, "one", subject=("TrainingRun", "demo", "uid-of-demo"), reason="PhaseChanged", at="2026-11-30T00:53:35Z")
    stored(uri="s3://bucket/demo")
    world.api.put(
        TRAINING_RUN,
        {"metadata": {"name": "demo", "namespace": "team-a"}, "spec": {"checkpoint": {"endpoint": "http://127.0.0.1:9", "insecure": True}}},
    )
    done = shell(*PROD, "events", "demo")
    assert "kubernetes.PhaseChanged object=TrainingRun/demo message=about demo" in done.stdout
    assert "the records in storage were not read" in done.stderr


def test_logs_of_ranks_are_read_from_storage_when_every_pod_is_gone(shell, stored, storage: Path):
    stored(phase="Succeeded", uri=f"file://{storage}")
    for attempt in (1, 2):
        record(storage, f"demo-s00-a{attempt}/logs/rank-0.000000.log", f"attempt {attempt}\n")
        record(storage, f"demo-s00-a{attempt}/logs/rank-1.000000.log", b"bad \xff byte \x1b[31m\n")
        record(storage, f"demo-s00-a{attempt}/logs/driver.000000.log", "driver\n")
    assert shell(*PROD, "logs", "demo", "--rank", "0").stdout == "a2 rank-0: attempt 2\n"
    assert shell(*PROD, "logs", "demo", "--rank", "0", "--attempt", "0").stdout == "a1 rank-0: attempt 1\na2 rank-0: attempt 2\n"
    assert shell(*PROD, "logs", "demo", "--rank", "1").stdout == "a2 rank-1: bad \N{REPLACEMENT CHARACTER} byte \n"
    assert shell(*PROD, "logs", "demo", "--source", "driver").stdout == "a2 driver: driver\n"
    assert shell(*PROD, "logs", "demo", "-f", "--source", "all").stdout.count("\n") == 3
    assert shell(*PROD, "logs", "demo", "--rank", "0", "--previous").stdout == "a1 rank-0: attempt 1\n"


def test_a_recorded_log_of_many_parts_is_one_log_also_when_a_part_is_cut_at_a_line(tmp_path: Path):
    store = open_store(str(tmp_path))
    log = RecordLog(store, "demo-s00-a1", "logs/rank-0.log")
    parts = [part_key("demo-s00-a1", "logs/rank-0.log", number) for number in range(3)]
    store.put(parts[0], b"one\ntwo\nthr")
    log.listed(parts[:1])
    assert list(log.drain()) == ["one", "two"]
    assert list(log.drain()) == []
    store.put(parts[0], b"one\ntwo\n")
    store.put(parts[1], b"three\nfour\n")
    store.put(parts[2], b"five")
    assert recorded_files(store, "demo-s00-a1") == {"logs/rank-0.log": parts}
    log.listed(parts)
    assert list(log.drain(last=True)) == ["three", "four", "five"]


def test_logs_of_nodes_come_from_their_pods_through_the_server(shell, stored, world: World, storage: Path):
    stored(uri=f"file://{storage}")
    pod(world, "demo-head", role="head", container="ray-head")
    pod(world, "demo-worker-a")
    world.logs["demo-head", "ray-head"] = b"2026-11-30T10:00:00.5Z head is up\n"
    world.logs["demo-worker-a", "ray-worker"] = b"2026-11-30T10:00:01.5Z one\n2026-11-30T10:00:02.5Z two\n"
    done = shell(*PROD, "logs", "demo", "--source", "node")
    assert done.stdout == "demo-head: head is up\ndemo-worker-a: one\ndemo-worker-a: two\n"
    assert shell(*PROD, "logs", "demo", "--source", "node", "--tail", "1", "--grep", "two").stdout == "demo-worker-a: two\n"


def test_a_followed_pod_repeats_no_line(shell, stored, world: World, storage: Path):
    stored(uri=f"file://{storage}")
    pod(world, "demo-worker-a")
    log = ("demo-worker-a", "ray-worker")
    world.logs[log] = b"2026-11-30T10:00:02.1Z one\n2026-11-30T10:00:02.2Z two\n"

    def go_on() -> None:
        time.sleep(1.5)
        world.logs[log] += b"2026-11-30T10:00:02.3Z three\n2026-11-30T10:00:03.0Z four\n"
        time.sleep(1.5)
        stored(phase="Succeeded", uri=f"file://{storage}")

    thread = threading.Thread(target=go_on)
    thread.start()
    done = shell(*PROD, "logs", "demo", "-f", "--source", "node")
    thread.join(timeout=10)
    assert [line.rpartition(" ")[2] for line in done.stdout.splitlines()] == ["one", "two", "three", "four"]


def test_the_container_before_the_last_restart_is_read_where_the_kubelet_still_has_it(shell, stored, world: World, storage: Path):
    stored(uri=f"file://{storage}")
    for name, restarts in (("samite-operator-1", 2), ("samite-operator-2", 1), ("samite-operator-3", 0)):
        pod(world, name, role="operator", container="operator", restarts=restarts)
        world.logs[name, "operator"] = b"2026-11-30T10:00:01.5Z run demo now\n"
    world.previous_logs["samite-operator-1", "operator"] = b"2026-11-30T09:00:01.5Z run demo before\n2026-11-30T09:00:02.5Z run other\n"
    done = shell(*PROD, "logs", "demo", "--source", "operator", "--previous")
    assert done.stdout == "samite-operator-1: run demo before\n"


def test_a_run_of_one_attempt_has_no_previous_one(shell, stored, storage: Path):
    stored(uri=f"file://{storage}")
    record(storage, "demo-s00-a1/logs/rank-0.000000.log", "x\n")
    assert "has no logs of source 'rank' before its newest" in shell(*PROD, "logs", "demo", "--previous", code=5).stderr


@pytest.mark.parametrize("flag", [("-f",), ("--attempt", "1")])
def test_previous_names_one_attempt_and_nothing_more(shell, flag: tuple[str, ...]):
    assert "--previous is one attempt" in shell(*PROD, "logs", "demo", "--previous", *flag, code=2).stderr


def test_a_source_without_logs_is_not_found(shell, stored, storage: Path):
    stored(uri=f"file://{storage}")
    assert "no logs of source 'rank'" in shell(*PROD, "logs", "demo", code=5).stderr


def test_describe_shows_pods_attempts_and_places(shell, stored, world: World, storage: Path):
    stored(uri=f"file://{storage}")
    pod(world, "demo-head", role="head", container="ray-head")
    record(storage, "demo-s00-a1/logs/driver.000000.log", "x\n")
    text = shell(*PROD, "describe", "demo").stdout
    assert "cluster      demo-s00-1a2b3\n" in text
    assert f"records      file://{storage}/records\n" in text
    assert "             demo-head  Running      True   1         node-1\n" in text
    assert "attempts     demo-s00-a1\n" in text
    assert "samite report demo --context prod --namespace team-a" in text
    found = json.loads(shell(*PROD, "describe", "demo", "-o", "json").stdout)
    assert found["kind"] == "TrainingRunDescription"


def test_the_report_is_made_of_what_storage_holds(shell, stored, storage: Path, tmp_path: Path):
    stored(phase="Succeeded", uri=f"file://{storage}")
    for attempt in (1, 2):
        line = {"time": 1_796_000_000.0 + attempt, "step": attempt, "metrics": {}}
        record(storage, f"demo-s00-a{attempt}/metrics/rank-0.000000.jsonl", json.dumps(line) + "\n")
    record(storage, "operator/events/00000.jsonl", event("samite.run.phase.changed", 1_796_000_000.0, service="samite-operator"))
    target = tmp_path / "out.html"
    assert shell(*PROD, "report", "demo", "-o", str(target)).stdout == f"{target}\n"
    text = target.read_text(encoding="utf-8")
    assert "demo: succeeded" in text
    assert "events.jsonl: not there" not in text


def test_checkpoints_are_found_by_the_runs_name(shell, stored, storage: Path):
    stored(uri=f"file://{storage}")
    assert f"No checkpoints at file://{storage}." in shell(*PROD, "checkpoints", "ls", "demo").stderr


def test_another_address_of_the_storage_may_be_named(shell, stored, monkeypatch: pytest.MonkeyPatch):
    stored(uri="s3://bucket/demo")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("SAMITE_STORAGE_ENDPOINT", "http://127.0.0.1:9")
    assert "127.0.0.1:9" in shell(*PROD, "checkpoints", "ls", "demo", code=11).stderr


def test_a_node_is_killed_by_deleting_its_pod_without_grace(shell, stored, world: World):
    stored()
    pod(world, "demo-head", role="head", container="ray-head")
    pod(world, "demo-worker-a", node="node-1")
    pod(world, "demo-worker-b", node="node-2")
    assert "deleted pod demo-worker-b of demo without grace" in shell(*PROD, "chaos", "kill-node", "demo").stderr
    shell(*PROD, "chaos", "kill-node", "demo", "--node", "node-1")
    assert [item["metadata"]["name"] for item in world.api.every(POD)] == ["demo-head"]
    assert all(body["gracePeriodSeconds"] == 0 for _, body in world.asked("DELETE", "/pods/"))
    reasons = [item["reason"] for item in world.api.every(EVENT)]
    assert reasons == ["ChaosInjected", "ChaosInjected"]
    assert "no living worker" in shell(*PROD, "chaos", "kill-node", "demo", code=5).stderr
    shell(*PROD, "chaos", "kill-head", "demo")
    assert world.api.every(POD) == ()


def test_faults_of_ranks_travel_in_the_lease_beside_the_operators_documents(shell, stored, world: World):
    stored()
    assert "no attempt of run 'demo' is under way" in shell(*PROD, "chaos", "nan", "demo", code=5).stderr
    annotations = {"samite.dev/control": json.dumps({"stop.json": {"id": 1}}), "samite.dev/submission": "demo-s00-a2"}
    world.api.put(LEASE, {"metadata": {"name": "demo-heartbeat", "namespace": "team-a", "annotations": annotations}, "spec": {}})
    shell(*PROD, "chaos", "nan", "demo", "--rank", "1", "--step", "12")
    shell(*PROD, "chaos", "kill-rank", "demo", "--rank", "1")
    found = world.api.look(LEASE, "team-a", "demo-heartbeat")["metadata"]["annotations"]
    control = json.loads(found["samite.dev/control"])
    assert control["stop.json"] == {"id": 1}
    assert [(fault["kind"], fault["rank"], fault["step"]) for fault in control["faults.json"]["faults"]] == [
        ("nan", 1, 12),
        ("kill", 1, -1),
    ]
    assert len({fault["id"] for fault in control["faults.json"]["faults"]}) == 2


def test_what_kubernetes_cannot_do_names_what_it_can(shell, stored):
    stored()
    assert "samite chaos kill-head" in shell(*PROD, "chaos", "kill-driver", "demo", code=2).stderr
    assert "kubectl" in shell(*PROD, "chaos", "kill-supervisor", "demo", code=2).stderr
