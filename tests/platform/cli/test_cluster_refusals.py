"""What a person reads when a cluster cannot be reached, does not let them in, or does not take the document; and with which exit code."""

import json
import socket
from pathlib import Path

import pytest
from served_api import World, write_kubeconfig

from samite.engines.kuberay.api import TRAINING_RUN as KIND
from samite.engines.kuberay.api import error_of
from samite.engines.kuberay.client_errors import Where, explained

PROD = ("--context", "prod")
WHERE = Where(context="prod", namespace="team-a", user="alice", address="https://10.0.0.1:6443")


def refusal(message: str, reason: str, code: int) -> dict[str, object]:
    return {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}


def test_a_mistyped_context_is_answered_with_the_one_that_was_meant(shell):
    done = shell("--context", "prd", "list", code=5)
    assert "Did you mean prod? Contexts: prod, staging" in done.stderr


def test_without_a_kubeconfig_the_ways_to_name_one_are_said(shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    done = shell("-n", "team-a", "list", code=2)
    assert str(tmp_path / "nothing") in done.stderr
    assert "--kubeconfig FILE" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no: [yaml",
        "\x00\x01",
        "[]",
        "{}",
        '{"contexts": [{"name": "prod", "context": {"cluster": "gone", "user": "gone"}}], "current-context": "prod"}',
    ],
)
def test_a_kubeconfig_that_is_none_is_named_and_never_a_traceback(shell, tmp_path: Path, text: str):
    file = tmp_path / "[broken]"
    file.write_text(text, encoding="utf-8")
    assert str(file) in shell("--kubeconfig", str(file), "list", code=2).stderr


def test_a_server_that_is_not_there_is_named_with_what_to_try(shell, tmp_path: Path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    file = write_kubeconfig(tmp_path / "k", address)
    done = shell("--kubeconfig", str(file), "list", code=11)
    assert f"at {address} did not answer within 10 s: connection refused" in done.stderr
    assert "kubectl --context prod get --raw /readyz" in done.stderr


def test_a_name_that_does_not_resolve_says_so(shell, tmp_path: Path):
    file = write_kubeconfig(tmp_path / "k", "https://nowhere.invalid:6443")
    assert "its name cannot be resolved" in shell("--kubeconfig", str(file), "list", code=11).stderr


@pytest.mark.slow
def test_a_server_that_accepts_and_stays_silent_is_waited_for_ten_seconds_and_no_longer(shell, world: World):
    world.silent_s = 30.0
    done = shell(*PROD, "list", code=11)
    assert "did not answer within 10 s: no connection or no answer in time" in done.stderr


def test_a_silent_server_does_not_end_a_watch_that_has_begun(shell, stored, world: World):
    stored()
    world.answers += [("GET", "trainingruns/demo", 200, world.api.look(KIND, "team-a", "demo")) for _ in range(2)]
    world.answers += [("GET", "trainingruns/demo", 503, refusal("etcd has no leader", "ServiceUnavailable", 503))]
    stored(phase="Succeeded")
    done = shell(*PROD, "status", "demo", "-w")
    assert "Running" in done.stdout
    assert "Succeeded" in done.stdout


def test_an_unknown_login_says_who_was_not_let_in(shell, world: World):
    world.answers.append(("GET", "trainingruns", 401, refusal("Unauthorized", "Unauthorized", 401)))
    done = shell(*PROD, "list", code=4)
    assert "does not accept the credentials of user 'alice'" in done.stderr
    assert "kubectl --context prod auth whoami" in done.stderr


def test_a_login_helper_that_fails_is_named_when_the_server_lets_nobody_in(shell, world: World, tmp_path: Path):
    file = write_kubeconfig(tmp_path / "k", world.address)
    document = json.loads(file.read_text(encoding="utf-8"))
    helper = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-helper", "interactiveMode": "Never"}
    document["users"][0]["user"] = {"exec": helper}
    file.write_text(json.dumps(document), encoding="utf-8")
    text = 'x is forbidden: User "system:anonymous" cannot list resource "trainingruns" in API group "samite.dev" in the namespace "team-a"'
    world.answers.append(("GET", "trainingruns", 403, refusal(text, "Forbidden", 403)))
    done = shell("--kubeconfig", str(file), "list", code=4)
    assert "the login helper of the kubeconfig failed" in done.stderr
    assert "no-such-helper" in done.stderr


def test_an_address_of_ipv6_keeps_its_brackets(shell, tmp_path: Path):
    file = write_kubeconfig(tmp_path / "k", "http://[::1]:9")
    assert "at http://[::1]:9 did not answer" in shell("--kubeconfig", str(file), "list", code=11).stderr


def test_a_missing_right_says_which_verb_on_what_and_who_has_it_not(shell, world: World):
    text = 'trainingruns.samite.dev is forbidden: User "alice@example" cannot list resource "trainingruns" in API group "samite.dev" in the namespace "team-a"'
    world.answers.append(("GET", "trainingruns", 403, refusal(text, "Forbidden", 403)))
    done = shell(*PROD, "list", code=4)
    assert "alice@example may not list trainingruns.samite.dev in namespace team-a (context prod)" in done.stderr
    assert "samite doctor" in done.stderr


def test_a_policy_that_refuses_is_quoted(shell, world: World, spec_file: Path):
    text = (
        "trainingruns.samite.dev \"demo\" is forbidden: ValidatingAdmissionPolicy 'samite' denied request: at most 50 runs in a namespace"
    )
    world.answers.append(("POST", "trainingruns", 403, refusal(text, "Forbidden", 403)))
    assert "at most 50 runs in a namespace" in shell("submit", "-f", str(spec_file), code=4).stderr


@pytest.mark.parametrize("words", [("list",), ("status", "demo"), ("cancel", "demo", "--yes")])
def test_a_cluster_without_the_crds_is_told_how_to_get_them(shell, world: World, words: tuple[str, ...]):
    world.unknown_kinds.add("trainingruns")
    assert "samite crds apply --context prod" in shell(*PROD, *words, code=5).stderr


def test_a_submit_to_a_cluster_without_the_crds_is_told_the_same(shell, world: World, spec_file: Path):
    world.unknown_kinds.add("trainingruns")
    assert "samite crds apply" in shell("submit", "-f", str(spec_file), code=5).stderr


def test_a_field_that_an_older_crd_would_drop_is_refused_by_name(shell, world: World, spec_file: Path):
    text = 'TrainingRun in version "v1alpha1" cannot be handled as a TrainingRun: strict decoding error: unknown field "spec.slo", unknown field "spec.queue"'
    world.answers.append(("POST", "trainingruns", 400, refusal(text, "BadRequest", 400)))
    done = shell("submit", "-f", str(spec_file), code=3)
    assert "spec.slo" in done.stderr
    assert "spec.queue" in done.stderr
    assert "samite crds diff --context prod" in done.stderr


def test_what_the_server_finds_wrong_reads_like_what_validate_finds(shell, world: World, spec_file: Path):
    text = (
        'TrainingRun.samite.dev "demo" is invalid: [spec.stages[0].contextLength: Invalid value: 48010: must be a multiple of 64, '
        'spec.checkpoint.uri: Required value, spec.engine: Unsupported value: "Locl": supported values: "RayCluster", "RayJob"]'
    )
    world.answers.append(("POST", "trainingruns", 422, refusal(text, "Invalid", 422)))
    done = shell("submit", "-f", str(spec_file), code=3)
    assert "context prod  spec.stages[0].contextLength\n" in done.stderr
    assert "wanted must be a multiple of 64; found 48010" in done.stderr
    assert 'wanted supported values: "RayCluster", "RayJob"; found "Locl"' in done.stderr
    assert done.stderr.rstrip().endswith("context prod: 3 problems found")


def test_an_unknown_run_is_answered_with_the_one_that_was_meant(shell, stored):
    stored("quickstart")
    stored("other")
    done = shell(*PROD, "status", "quikstart", code=5)
    assert "Did you mean quickstart? Known runs: other, quickstart." in done.stderr


def test_a_run_that_was_deleted_while_it_was_watched_says_where_its_records_are(shell, stored, world: World):
    stored()
    world.answers.append(("GET", "trainingruns/demo", 200, world.api.look(KIND, "team-a", "demo")))
    world.api.delete(KIND, "team-a", "demo")
    done = shell(*PROD, "status", "demo", "-w", code=5)
    assert "was deleted from namespace team-a of context prod; its storage is as it was: s3://bucket/demo" in done.stderr


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_in_trouble_is_unreachable_and_not_a_verdict(shell, world: World, code: int):
    world.answers.append(("GET", "trainingruns", code, refusal("try again later", "TooManyRequests", code)))
    assert "try again later" in shell(*PROD, "list", code=11).stderr


def test_a_message_of_one_problem_has_no_brackets():
    text = 'POST /x: TrainingRun.samite.dev "demo" is invalid: spec.env[0]: Invalid value: "object": secrets come through valueFrom: write secretKeyRef'
    problem = explained(error_of(422, text, reason="Invalid"), WHERE, KIND).problems[0]  # type: ignore[attr-defined]
    assert (problem.path, problem.wanted) == ("spec.env[0]", "secrets come through valueFrom: write secretKeyRef")


def test_an_answer_that_is_no_json_is_no_traceback(shell, world: World):
    world.answers.append(("GET", "trainingruns", 502, b"<html>bad gateway [/red]</html>"))  # type: ignore[arg-type]
    assert "<html>bad gateway [/red]</html>" in shell(*PROD, "list", code=11).stderr
