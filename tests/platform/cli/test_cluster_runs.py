"""Runs on Kubernetes from the command line: submitted, listed, shown, asked, deleted. The API server is a served fake; the client is the real one."""

import json
from pathlib import Path

import pytest
from served_api import World

from samite.engines.kuberay.api import TRAINING_RUN
from samite.engines.kuberay.wishes import wishes_of
from samite.lifecycle import Memory

PROD = ("--context", "prod")


def run_in(world: World, name: str = "demo", namespace: str = "team-a"):
    return world.api.look(TRAINING_RUN, namespace, name)


def test_a_submitted_run_is_one_call_with_the_whole_document_and_suggestions_that_find_it_again(shell, world: World, spec_file: Path):
    done = shell("submit", "-f", str(spec_file))
    assert done.stdout == "run demo submitted\n"
    assert "samite status demo -w --context prod --namespace team-a" in done.stderr
    ((query, body),) = world.asked("POST", "trainingruns")
    assert query == {"fieldManager": "samite-cli", "fieldValidation": "Strict"}
    assert body["metadata"]["namespace"] == "team-a"
    assert body["spec"]["checkpoint"]["interval"] == {"steps": 100}


@pytest.mark.parametrize("words", [(), ("--dry-run=server",)])
def test_a_run_carries_the_name_that_the_server_knows_its_submitter_by(shell, world: World, spec_file: Path, words: tuple[str, ...]):
    world.user = "oidc:alice@example.org"
    shell("submit", "-f", str(spec_file), *words)
    ((_, body),) = world.asked("POST", "trainingruns")
    assert body["metadata"]["annotations"] == {"samite.dev/submitted-by": "oidc:alice@example.org"}


def test_a_name_that_the_document_gives_is_left_to_the_server_to_judge(shell, world: World, spec_file: Path):
    world.user = "alice"
    document = json.loads(spec_file.read_text())
    document["metadata"]["annotations"] = {"samite.dev/submitted-by": "carol", "note": "x"}
    spec_file.write_text(json.dumps(document))
    shell("submit", "-f", str(spec_file))
    ((_, body),) = world.asked("POST", "trainingruns")
    assert body["metadata"]["annotations"] == {"samite.dev/submitted-by": "carol", "note": "x"}


def test_a_server_that_does_not_say_who_we_are_costs_the_name_and_nothing_else(shell, world: World, spec_file: Path):
    shell("submit", "-f", str(spec_file))
    ((_, body),) = world.asked("POST", "trainingruns")
    assert "samite.dev/submitted-by" not in (body["metadata"].get("annotations") or {})


def test_the_same_run_again_is_no_error_also_when_it_was_suspended_meanwhile(shell, world: World, spec_file: Path):
    shell("submit", "-f", str(spec_file))
    world.api.put(TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team-a"}, "spec": {"suspend": True}})
    assert shell("submit", "-f", str(spec_file)).stdout == "run demo was already submitted\n"


def test_another_run_under_the_same_name_is_a_conflict_with_two_ways_out(shell, spec_file: Path):
    shell("submit", "-f", str(spec_file))
    done = shell("submit", "-f", str(spec_file), "--set", "spec.seed=7", code=6)
    assert "exists in namespace team-a of context prod with another spec" in done.stderr
    assert "--name" in done.stderr
    assert "samite delete demo" in done.stderr


def test_a_name_whose_run_is_being_deleted_is_not_free_yet(shell, stored, spec_file: Path):
    stored(deletionTimestamp="2026-11-30T11:00:00Z", finalizers=["samite.dev/finalizer"])
    assert "is being deleted" in shell("submit", "-f", str(spec_file), code=6).stderr


@pytest.mark.parametrize("words", [("--dry-run=server",), ("--dry-run", "server")])
def test_a_dry_run_of_the_server_keeps_nothing(shell, world: World, spec_file: Path, words: tuple[str, ...]):
    done = shell("submit", "-f", str(spec_file), *words)
    assert "the API server of namespace team-a of context prod accepts it; nothing was started" in done.stderr
    assert world.asked("POST", "trainingruns")[0][0]["dryRun"] == "All"
    assert run_in(world) is None


@pytest.mark.parametrize("words", [("--dry-run",), ("--dry-run=client",), ("--dry-run", "-o", "yaml")])
def test_a_dry_run_of_the_client_asks_no_server(shell, world: World, spec_file: Path, words: tuple[str, ...]):
    assert "kind: TrainingRun" in shell("submit", "-f", str(spec_file), *words).stdout
    assert world.requests == []


def test_a_local_run_is_not_sent_to_a_cluster_that_was_named(shell, world: World, spec_file: Path):
    done = shell(*PROD, "submit", "-f", str(spec_file), "--set", "spec.engine=Local", code=2)
    assert "--set spec.engine=RayCluster" in done.stderr
    assert world.requests == []


def test_a_local_run_has_no_server_to_ask_whatever_the_shell_prefers(shell, world: World, spec_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SAMITE_CONTEXT", "prod")
    done = shell("submit", "-f", str(spec_file), "--set", "spec.engine=Local", "--dry-run=server", code=2)
    assert "engine: Local has none" in done.stderr
    assert world.requests == []


def test_the_document_and_the_command_line_must_not_name_two_namespaces(shell, spec_file: Path):
    done = shell("-n", "other", "submit", "-f", str(spec_file), "--set", "metadata.namespace=team-b", code=2)
    assert "team-b" in done.stderr
    assert "other" in done.stderr


def test_the_document_names_its_namespace(shell, world: World, spec_file: Path):
    shell("submit", "-f", str(spec_file), "--set", "metadata.namespace=team-b")
    assert run_in(world, namespace="team-b") is not None


def test_without_a_cluster_named_commands_look_at_this_machine_and_say_how_to_look_further(shell, stored, world: World):
    stored()
    assert "samite --context NAME" in shell("status", "demo", code=5).stderr
    assert world.requests == []


@pytest.mark.parametrize(
    "words",
    [
        (*PROD, "status", "demo", "-o", "name"),
        ("status", "demo", *PROD, "-o", "name"),
        ("-n", "team-a", "status", "demo", "-o", "name"),
        ("status", "-n", "team-a", "-o", "name"),
        ("status", "--namespace=team-a", "demo", "-o", "name"),
    ],
)
def test_the_flags_of_a_cluster_may_stand_before_or_after_the_command(shell, stored, words: tuple[str, ...]):
    stored()
    assert shell(*words).stdout == "demo\n"


def test_the_environment_names_a_cluster_for_a_whole_shell(shell, stored, monkeypatch: pytest.MonkeyPatch):
    stored()
    monkeypatch.setenv("SAMITE_CONTEXT", "staging")
    assert shell("status", "demo", "-o", "name").stdout == "demo\n"


def test_status_is_the_operators_without_what_only_the_operator_reads(shell, stored):
    stored()
    found = json.loads(shell(*PROD, "status", "demo", "-o", "json").stdout)
    assert "memory" not in found
    assert found["name"] == "demo"
    assert found["namespace"] == "team-a"
    assert found["totalSteps"] == 60
    assert found["settled"] is False


def test_the_screen_of_a_run(shell, stored):
    stored()
    assert shell(*PROD, "status", "demo").stdout == (
        "demo   Running   stage 1/1 pretrain (1024 tokens)   step 41/60   68.3 %   ETA 17.3 s   9,000 tokens/s   ETTR 81.2 %\n"
        "stages   pretrain running\n"
        "nodes    2 up\n"
        "lost     detect 3.1 s   restart 6.0 s\n"
        "saved    step 40 committed: s0000000040-e000002   in 3.1 s, training waited 0.07 s\n"
        "failure  infra: node demo-s00-1a2b3-worker-x: pod lost; L2; 19 infra restarts left\n"
    )


def test_a_run_that_nobody_looked_at_says_so(shell, stored):
    stored(phase="")
    assert "no operator has looked yet" in shell(*PROD, "status", "demo").stdout


def test_the_table_of_runs(shell, stored):
    stored("one")
    stored("two", phase="Succeeded", status={"progress": {"step": 60, "percent": 100.0}, "restarts": {}})
    stored("other", namespace="team-b")
    lines = shell(*PROD, "list").stdout.splitlines()
    assert [line.split()[:7] for line in lines] == [
        ["NAME", "PHASE", "STAGE", "STEP", "DONE", "ETTR", "RESTARTS"],
        ["one", "Running", "pretrain", "41", "68.3%", "81.2%", "1"],
        ["two", "Succeeded", "pretrain", "60", "100.0%", "81.2%", "0"],
    ]
    every = shell(*PROD, "list", "-A").stdout.splitlines()
    assert [line.split()[:2] for line in every] == [["NAMESPACE", "NAME"], ["team-a", "one"], ["team-a", "two"], ["team-b", "other"]]


def test_a_list_of_every_namespace_is_one_request(shell, stored, world: World):
    for number in range(5):
        stored(f"run-{number}", namespace=f"team-{number}")
    shell(*PROD, "list", "-A")
    assert len(world.requests) == 1


def test_the_only_active_run_need_not_be_named(shell, stored):
    stored("over", phase="Failed")
    stored("active")
    assert shell(*PROD, "status", "-o", "name").stdout == "active\n"
    stored("active-too", phase="Held")
    assert "active, active-too" in shell(*PROD, "status", code=2).stderr


def test_watching_ends_with_the_run(shell, stored):
    stored(phase="Succeeded")
    assert "Succeeded" in shell(*PROD, "status", "demo", "-w").stdout


@pytest.mark.parametrize(("phase", "code"), [("Running", 0), ("Succeeded", 0), ("Failed", 8), ("Cancelled", 9), ("Held", 10)])
def test_the_exit_code_follows_the_phase_when_asked(shell, stored, phase: str, code: int):
    stored(phase=phase)
    shell(*PROD, "status", "demo", "--exit-code", code=code)


def test_cancelling_is_an_annotation_on_this_very_object(shell, stored, world: World):
    stored()
    done = shell(*PROD, "cancel", "demo", "--yes")
    assert "samite status demo -w --context prod --namespace team-a" in done.stderr
    ((_, body),) = world.asked("PATCH", "trainingruns/demo")
    assert body == {"metadata": {"uid": "uid-of-demo", "annotations": {"samite.dev/cancel": "true"}}}


def test_nobody_is_there_to_be_asked_so_cancel_wants_yes(shell, stored, world: World):
    stored()
    assert "1 steps since the newest checkpoint are lost" in shell(*PROD, "cancel", "demo", code=2).stderr
    assert world.asked("PATCH", "trainingruns") == []


def test_suspending_and_resuming_change_one_field(shell, stored, world: World):
    stored()
    shell(*PROD, "suspend", "demo")
    assert run_in(world)["spec"]["suspend"] is True
    stored(phase="Suspended")
    shell(*PROD, "resume", "demo")
    assert [body["spec"] for _, body in world.asked("PATCH", "trainingruns/demo")] == [{"suspend": True}, {"suspend": False}]


def test_a_held_run_is_resumed_by_a_request_that_says_who_asked(shell, stored, world: World):
    stored(phase="Held")
    shell(*PROD, "resume", "demo")
    annotations = run_in(world)["metadata"]["annotations"]
    ((name, text),) = annotations.items()
    assert name.startswith("samite.dev/request-")
    assert len(name.partition("/")[2]) <= 63
    assert json.loads(text)["verb"] == "resume"
    assert json.loads(text)["by"]


def test_a_restart_carries_its_level(shell, stored, world: World):
    stored()
    shell(*PROD, "restart", "demo", "--level", "L3", "--yes")
    (text,) = run_in(world)["metadata"]["annotations"].values()
    assert json.loads(text)["argument"] == "L3"


def test_what_is_over_cannot_be_asked(shell, stored):
    stored(phase="Succeeded")
    for verb in ("cancel", "suspend", "resume"):
        assert "Succeeded already" in shell(*PROD, verb, "demo", code=6).stderr


def test_only_a_run_that_is_over_is_deleted_and_its_storage_stays(shell, stored, world: World):
    stored()
    assert "samite cancel demo --wait" in shell(*PROD, "delete", "demo", "--yes", code=6).stderr
    stored(phase="Cancelled")
    assert "its storage stays as it is" in shell(*PROD, "delete", "demo", code=2).stderr
    shell(*PROD, "delete", "demo", "--yes")
    assert run_in(world) is None


def test_waiting_for_a_phase_ends_with_another_end(shell, stored, spec_file: Path, world: World):
    stored(phase="Failed", status={"message": "out of budget"})
    done = shell("submit", "-f", str(spec_file), "--wait=Running", code=8)
    assert "out of budget" in done.stderr
    assert shell("submit", "-f", str(spec_file), "--wait=failed").stdout == "run demo was already submitted\n"


def test_a_run_that_was_just_asked_to_go_on_is_not_yet_held_for_good(shell, stored):
    stored(phase="Held", status={"settled": True})
    assert "wanted Running" in shell(*PROD, "resume", "demo", "--wait", "--timeout", "1", code=7).stderr


def test_an_approval_is_added_where_a_policy_can_guard_it_and_keeps_what_others_added(shell, stored, world: World):
    stored()
    world.api.put(
        TRAINING_RUN, {"metadata": {"name": "demo", "namespace": "team-a"}, "spec": {"approvals": [{"stage": "other", "by": "bob"}]}}
    )
    assert "approved stage pretrain of demo" in shell(*PROD, "stages", "approve", "demo", "pretrain").stderr
    approvals = run_in(world)["spec"]["approvals"]
    assert [approval["stage"] for approval in approvals] == ["other", "pretrain"]
    shell(*PROD, "stages", "approve", "demo", "pretrain")
    assert run_in(world)["spec"]["approvals"] == approvals
    found = wishes_of(run_in(world), Memory()).requests
    assert [(request.kind.value, request.argument) for request in found] == [("approve", "other"), ("approve", "pretrain")]
    assert wishes_of(run_in(world), Memory(handled_requests=("approval-other", "approval-pretrain"))).requests == ()
    assert "it has: pretrain" in shell(*PROD, "stages", "approve", "demo", "pretrian", code=5).stderr


def test_the_stages_of_a_run(shell, stored):
    stored()
    lines = [line.split() for line in shell(*PROD, "stages", "ls", "demo").stdout.splitlines()]
    assert lines[1] == ["pretrain", "Pretrain", "1024", "60", "steps", "-", "running"]


def test_a_node_is_left_out_on_request(shell, stored, world: World):
    stored()
    shell(*PROD, "nodes", "exclude", "demo", "gpu-0417")
    shell(*PROD, "nodes", "uncordon", "demo", "gpu-0417")
    requests = wishes_of(run_in(world), Memory()).requests
    assert [(request.kind.value, request.argument) for request in requests] == [("exclude", "gpu-0417"), ("uncordon", "gpu-0417")]


@pytest.mark.parametrize("left", [("Suspended", "False"), ("Suspended", "True"), ("Restarting", "True"), ("Succeeded", "Unknown")])
def test_a_run_that_was_resumed_is_running_whatever_condition_is_left_from_before(shell, stored, spec_file: Path, left: tuple[str, str]):
    stored(phase="Running", status={"conditions": [{"type": left[0], "status": left[1], "reason": "Before"}]})
    assert shell("submit", "-f", str(spec_file), "--wait=Running", "--timeout", "5").stdout.startswith("run demo was already submitted")
    assert "Running" in shell(*PROD, "status", "demo").stdout.splitlines()[0]
