"""No signal, file or status holds a secret, or a number that JSON does not have, whatever an exception or a heartbeat said."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from samite.lifecycle.simulation import small_run
from samite.spec.attempt import FailureReport, Heartbeat
from samite.spec.lease import FAILURES, HEARTBEATS, SUBMISSION, read_lease
from samite.telemetry.events import EventLog
from samite.telemetry.redaction import secrets_of, without_secrets
from samite.telemetry.setup import setup_telemetry
from samite_workloads.train.reports import read_reports, write_report

KEY = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TEXTS = [
    ("cannot reach https://user:hunter2hunter2@s3.example/bucket: timed out", "hunter2hunter2"),
    ("403 for https://s3.example/b/k?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2Fx&X-Amz-Signature=deadbeefdeadbeef", "deadbeefdeadbeef"),
    ("The AWS Access Key Id AKIAIOSFODNN7EXAMPLE does not exist", "AKIAIOSFODNN7EXAMPLE"),
    ("Authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.x", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"),
    ("connect(host='db', password='correct-horse-battery')", "correct-horse-battery"),
    (f"botocore: secret_access_key={KEY}", KEY),
    (f"the key {KEY} was refused", KEY),
]


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)


def strict(text: str) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(("text", "secret"), TEXTS)
def test_an_event_holds_no_secret(tmp_path: Path, text: str, secret: str):
    log = EventLog(tmp_path / "e.jsonl")
    record = log.emit("samite.failure.detected", failure_class="infra", message=text, evidence=[f"log: {text}"])
    assert secret not in (tmp_path / "e.jsonl").read_text()
    assert secret not in repr(record.attributes)
    assert "[hidden]" in record.attributes["samite.message"]


@pytest.mark.parametrize(("text", "secret"), TEXTS)
def test_a_failure_report_holds_no_secret_nor_does_the_status_made_from_it(tmp_path: Path, text: str, secret: str):
    report = FailureReport(failure_class="application", error_type="E", message=text, traceback=f"Traceback\n  {text}", rank=0)
    path = write_report(tmp_path, report)
    assert secret not in path.read_text()
    assert read_reports(tmp_path)[0].error_type == "E"


@pytest.mark.parametrize(("text", "secret"), TEXTS[:4])
def test_a_status_shows_no_credentials_even_if_a_report_came_from_elsewhere(text: str, secret: str):
    from samite.lifecycle import Phase

    engine = small_run()
    engine.run_until(Phase.RUNNING)
    engine.world._raise(engine.world.running(), "application", text, None)
    document = engine.run(3).status.to_document()
    assert "[hidden]" in json.dumps(document)
    assert secret not in json.dumps(document)


def test_names_and_words_are_no_secrets():
    plain = "secretName: samite-s3-keys; 16384 tokens; tokenizer: bpe-large-cased; Secret team-s3-keys was not found; s3://bucket/path"
    assert without_secrets(plain, {"TOKENIZERS_PARALLELISM": "false", "SAMITE_TOKEN_KEY_FILE": "/etc/samite/token-key/key"}) == plain
    assert secrets_of({"A_TOKEN": "short", "PASSWORD_FILE": "/run/secrets/x", "B_TOKEN": "long-enough-1", "PATH": "long-enough-2"}) == (
        "long-enough-1",
    )


def test_metrics_and_events_are_strict_json_whatever_was_measured(tmp_path: Path):
    with setup_telemetry(service="s", run="r", uid="u", metrics_path=tmp_path / "m.jsonl", events_path=tmp_path / "e.jsonl") as telemetry:
        for value in (math.nan, math.inf, -math.inf):
            telemetry.record("samite.loss", value)
            telemetry.event("samite.stage.gate.evaluated", gate_check="loss", value=value, threshold=2.0)
    for file in tmp_path.iterdir():
        assert len([strict(line) for line in file.read_text().splitlines()]) == 3


def test_a_heartbeat_with_a_number_that_is_none_costs_that_number_or_the_heartbeat():
    beat = Heartbeat(
        rank=0,
        node="n",
        pid=1,
        submission_id="demo-s00-a1",
        incarnation=0,
        step=3,
        tokens=9,
        phase="training",
        monotonic_s=5.0,
        time_unix_s=6.0,
    )
    text = beat.to_json()
    assert math.isnan(Heartbeat.from_json(text[:-1] + ',"loss":1e999}').loss)
    assert Heartbeat.from_json(text[:-1] + ',"step_median_s":NaN}').step_median_s == 0.0
    with pytest.raises(ValueError, match="monotonic_s"):
        Heartbeat.from_json(text.replace('"monotonic_s":5.0', '"monotonic_s":NaN'))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_lease_with_a_number_that_is_none_is_damaged_there_and_nowhere_else(number: str):
    row = {"rank": 0, "node": "n", "pid": 1, "submission_id": "demo-s00-a1", "incarnation": 0, "step": 3, "tokens": 9, "phase": "training"}
    good = json.dumps([{**row, "time_unix_s": 6.0, "age_s": 1.0}])
    failures = json.dumps([{"failure_class": "infra", "error_type": "E", "message": "m"}])
    annotations = {SUBMISSION: "demo-s00-a1", HEARTBEATS: good, FAILURES: failures}
    assert len(read_lease(annotations, seen_at_s=10.0).signs) == 1
    bad = read_lease({**annotations, HEARTBEATS: good.replace('"age_s": 1.0', f'"age_s": {number}')}, seen_at_s=10.0)
    assert (bad.signs, len(bad.failures)) == ((), 1)


def test_a_status_is_strict_json_although_a_rank_reported_none_of_the_numbers():
    from dataclasses import replace

    from samite.lifecycle import Phase

    engine = small_run()
    engine.run_until(Phase.RUNNING)
    engine.run(4)
    seen = engine.look()
    odd = tuple(replace(rank, step_median_s=math.nan) for rank in seen.ranks)
    status = engine.turn(replace(seen, ranks=odd)).status
    broken = replace(status, progress=replace(status.progress, tokens_per_s=math.inf, eta_s=math.nan))
    document = strict(json.dumps(broken.to_document()))
    assert (document["progress"]["tokensPerS"], document["progress"]["etaS"]) == (None, None)
