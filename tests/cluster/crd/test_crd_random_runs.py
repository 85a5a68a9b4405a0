"""Random runs, many of them wrong: Python and the real API server say the same about each, word for word."""

import random
from typing import Any

import pytest
import yaml
from verdicts import Said, Verdict, of_python, of_server

from samite.engines.kuberay.api_client import RealApi

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NUM_RUNS = 300
POWERS = (1, 1, 1, 2, 3, 4, 6, 8)


def random_stage(dice: random.Random, index: int) -> dict[str, Any]:
    length = dice.choice([1024, 2048, 4096, 48_010, 65_536])
    workers = sorted(dice.choices([1, 2, 3, 4, 6, 8, 12, 16], k=2), reverse=dice.random() < 0.1)
    parallel = {axis: dice.choice(POWERS) for axis in ("tensor", "pipeline", "context", "expert") if dice.random() < 0.4}
    stage: dict[str, Any] = {
        "name": dice.choice(["a", "b", "c", f"s{index}", f"s{index}"]),
        "kind": dice.choice(["Pretrain"] * 6 + ["Extend", "Anneal", "RL"]),
        "contextLength": length,
        "workers": {"min": workers[0], "max": workers[1]},
        "gpusPerWorker": dice.choice([0, 1, 8]),
        "parallel": parallel | ({"data": dice.choice([1, 2, 8, 64])} if dice.random() < 0.2 else {}),
        "batch": {"tokens": dice.choice([length * dice.choice([1, 5, 24, 64, 960]), 1_000_000]), "microBatch": dice.choice([1, 1, 2, 5])},
        "budget": dice.choice([{"steps": 9}, {"tokens": 10**6}, {"wallSeconds": 60.5}, {"steps": 9}, {"steps": 1, "tokens": 1}, {}]),
    }
    if (dice.random() < 0.8 and index) or dice.random() < 0.1:
        stage["handover"] = {"optimizer": "Carry", "lrSchedule": "Reset", "dataCursor": dice.choice(["Carry", "Reset"])}
    if dice.random() < 0.3:
        stage["data"] = {"uri": dice.choice(["s3://bucket/c", "corpora/c", "/mnt/c"]), "shuffleSeed": 3}
    return stage


def random_run(seed: int) -> dict[str, Any]:
    """A run whose fields are right by themselves, and go together or not."""
    dice = random.Random(seed)

    def fraction() -> float:
        return round(dice.random(), dice.choice([1, 2, 3, 5]))

    uris = [
        "s3://bucket/run",
        "s3://bucket/run",
        "file:///mnt/run",
        "/mnt/run",
        "file://run",
        "s3://",
        "s3://a@b/c",
        "gs://b/../c",
        "run",
        "S3:/b/r",
    ]
    endpoints = ["https://minio:9000", "http://minio", "http://localhost:9000/", "minio:9000/bucket", "https://minio/bucket", "ftp://x"]
    checkpoint: dict[str, Any] = {"uri": dice.choice(uris), "insecure": dice.random() < 0.2}
    checkpoint |= {"endpoint": dice.choice(endpoints)} if dice.random() < 0.4 else {}
    checkpoint |= {"interval": dice.choice([{"steps": 5}, {"seconds": 9.25}, {"steps": 5, "seconds": 9}, {}])}
    checkpoint |= (
        {"credentials": dice.choice([{"secretName": "a"}, {"secretName": "a", "profile": "b"}, {}])} if dice.random() < 0.3 else {}
    )
    checkpoint |= {"loadFrom": "s3://bucket/other"} if dice.random() < 0.1 else {}
    names = ["A", "B", "HF_TOKEN", "RANK", "MAX_TOKENS"]
    sources = [{"value": "1"}, {"valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}, {"valueFrom": {"hostEnv": "X"}}, {}]
    stages = [random_stage(dice, index) for index in range(dice.randint(1, 4))]
    return {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "sample"},
        "spec": {
            "engine": dice.choice(["RayCluster", "RayCluster", "RayJob", "Local"]),
            "checkpoint": checkpoint,
            "optimizer": {"schedule": dice.choice(["WSD", "Cosine"]), "warmupFraction": fraction(), "decayFraction": fraction()},
            "restart": {
                "startLevel": dice.randint(1, 5),
                "maxLevel": dice.randint(3, 5),
                "backoff": {"initialSeconds": dice.choice([0, 10, 60.5, 1e-3]), "capSeconds": dice.choice([10, 600, 0.25, 1e7])},
            },
            "detection": {
                "hang": {"floorSeconds": dice.choice([1, 7.5, 120])},
                "heartbeat": {"periodSeconds": dice.choice([0.7, 2, 33.3])},
            },
            "telemetry": {"otlpEndpoint": dice.choice(["http://a:4317", "a:4317", "http://a/b", "grpc://a"])},
            "env": [{"name": dice.choice(names), **dice.choice(sources)} for _ in range(dice.randint(0, 3))],
            "approvals": [{"stage": dice.choice(["a", "s0", "x"]), "by": "me"} for _ in range(dice.randint(0, 2))],
            "stages": stages,
        },
    }


def differences(python: Verdict, server: Verdict, *, local: bool) -> set[Said]:
    """What one of them says and the other does not, but for what docs/crds.md names.

    Of two messages about one place `samite validate` keeps the first. Of several items of a list that only a look at the whole list finds wrong, the
    API server names the first.
    """
    said_by_server: dict[str, set[str]] = {}
    for place, text in server.said:
        said_by_server.setdefault(place, set()).add(text)
    places = {place for place, _ in python.said}
    found = {(place, text) for place, text in server.said if place not in places}
    for place, text in python.said:
        if place in said_by_server and (text in said_by_server[place] or (local and place.startswith("spec.env["))):
            continue
        if not _looks_at_the_whole_list(place, text):
            found.add((place, text))
    return found


def _looks_at_the_whole_list(place: str, text: str) -> bool:
    marks = (
        "a name of its own",
        "the context never shrinks",
        "no other kind after RL",
        "takes over from",
        "each variable once",
        "the name of a stage",
    )
    return any(mark in text for mark in marks) or place.startswith("spec.approvals[") or place.endswith((".hostEnv", "data.uri"))


def test_both_say_the_same(api: RealApi):
    different, refused = [], 0
    for seed in range(NUM_RUNS):
        document = random_run(seed)
        python, server = of_python(yaml.safe_dump(document)), of_server(api, document)
        refused += not python.accepted
        assert python.accepted == server.accepted, f"seed {seed}: {python.said} {server.said} {server.other}"
        if found := differences(python, server, local=document["spec"]["engine"] == "Local"):
            different.append((seed, sorted(found)))
    assert different == []
    assert refused > NUM_RUNS / 2
