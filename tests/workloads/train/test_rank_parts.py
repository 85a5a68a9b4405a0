"""The small parts around the loop: heartbeat, faults, failure classes, addresses, agreement on one rank's numbers."""

import json
import math
import os
import signal
import socket
import time

import pytest
import torch

from samite.errors import CheckpointDamagedError, NotAllowedError, Problem, SpecError, UnreachableError
from samite.spec.attempt import AttemptSpec, FailureReport, Heartbeat
from samite_workloads import faults
from samite_workloads.faults import Fault, FaultPlan, InjectedFaultError, parse_faults
from samite_workloads.heartbeat import HeartbeatFile, stacks_on_signal
from samite_workloads.parallel.clip import clip_coefficient, squared_norms
from samite_workloads.parallel.group import Rendezvous, interface_of
from samite_workloads.train.failures import failure_class, is_permanent, report_of
from samite_workloads.train.groups import layer_of
from samite_workloads.train.numeric import NonFiniteError
from samite_workloads.train.outcome import WORKER_GROUP, incarnations_begun, this_incarnation
from samite_workloads.train.ranks import address_towards, plain_facts
from samite_workloads.train.reports import first_cause, may_restart_in_place, write_report


def heartbeat(tmp_path):
    return HeartbeatFile(tmp_path, rank=3, node="node-1", pid=os.getpid(), submission_id="r-s00-a1")


def test_a_heartbeat_carries_progress_and_a_clock_that_never_jumps(tmp_path):
    beat = heartbeat(tmp_path)
    beat.phase = "training"
    for step in range(1, 6):
        beat.finish_step(
            step=step, stage_step=step, tokens=100 * step, duration_s=0.5 if step != 3 else 9.0, compute_s=0.1 * step, loss=1.0
        )
    read = Heartbeat.read(tmp_path / "rank-3.json")
    assert (read.step, read.tokens, read.phase, read.step_median_s) == (5, 500, "training", 0.5)
    assert read.compute_s == pytest.approx(0.3)
    assert 0 <= time.monotonic() - read.monotonic_s < 5


def test_a_heartbeat_costs_less_than_a_millisecond(tmp_path):
    beat = heartbeat(tmp_path)
    costs = []
    for step in range(50):
        began_s = time.thread_time()
        beat.finish_step(step=step, stage_step=step, tokens=step, duration_s=0.1, compute_s=0.1, loss=1.0)
        costs.append(time.thread_time() - began_s)
    assert sorted(costs)[25] < 1e-3


def test_sigusr1_writes_the_stacks_of_all_threads(tmp_path):
    with stacks_on_signal(tmp_path / "logs" / "stacks.txt"):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert "test_rank_parts.py" in (tmp_path / "logs" / "stacks.txt").read_text()


def plan(tmp_path, *asked, rank=0):
    (tmp_path / "control").mkdir(exist_ok=True)
    (tmp_path / "control" / "faults.json").write_text(json.dumps({"faults": list(asked)}))
    return FaultPlan(tmp_path, rank, {})


def test_a_fault_strikes_its_rank_and_step_once_even_after_a_restart(tmp_path):
    asked = {"kind": "exception", "rank": 0, "step": 2, "id": "x"}
    plan(tmp_path, asked, rank=1).begin_step(2)
    first = plan(tmp_path, asked)
    first.begin_step(1)
    with pytest.raises(InjectedFaultError):
        first.begin_step(2)
    plan(tmp_path, asked).begin_step(2)


def test_a_fault_with_several_times_strikes_again_after_each_restart(tmp_path):
    asked = {"kind": "exception", "rank": 0, "step": 2, "times": 3, "id": "x"}
    struck = 0
    for _ in range(5):
        try:
            plan(tmp_path, asked).begin_step(2)
        except InjectedFaultError:
            struck += 1
    assert struck == 3


def test_faults_asked_for_while_the_run_trains_strike_in_the_next_step(tmp_path):
    watching = FaultPlan(tmp_path, 0, {})
    watching.begin_step(1)
    plan(tmp_path, {"kind": "oom"})
    with pytest.raises(MemoryError):
        watching.begin_step(2)


def test_a_slow_rank_takes_its_factor_longer(tmp_path):
    slow = plan(tmp_path, {"kind": "slow", "step": 1, "times": 2, "factor": 3.0})
    slow.begin_step(1)
    began_s = time.monotonic()
    for step in (1, 2, 3):
        slow.drag(step, 0.02)
    assert 0.08 <= time.monotonic() - began_s < 0.5


def test_a_sleeping_rank_stands_still_inside_the_step(tmp_path):
    began_s = time.monotonic()
    plan(tmp_path, {"kind": "sleep", "seconds": 0.1}).begin_step(5)
    assert time.monotonic() - began_s >= 0.1


def test_points_cost_nothing_and_do_nothing_when_no_fault_is_installed():
    faults.install(None)
    faults.reach("checkpoint.commit", 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"faults": [{"kind": "explode"}]}', "wanted one of"), ('{"faults": [{"kind": "nan", "at": 3}]}', r"faults\[0\]: unknown at")],
)
def test_a_fault_nobody_knows_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        parse_faults(text)


def test_faults_come_from_the_environment_too(tmp_path):
    from_environment = FaultPlan(tmp_path, 0, {"SAMITE_FAULTS": '{"faults": [{"kind": "nan", "step": 4}]}'})
    assert [from_environment.poisons_gradient(step) for step in (3, 4, 5)] == [False, True, False]
    assert Fault(kind="nan").step == faults.NEXT_STEP


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (NonFiniteError(3, ["loss"], (0, 4)), "numeric"),
        (MemoryError("no"), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:545] Connection closed by peer [127.0.0.1]:57475"), "infra"),
        (torch.distributed.DistBackendError("NCCL communicator was aborted"), "infra"),
        (ValueError("shape [2, 3] is not [/A]"), "application"),
        (SpecError([Problem(path="spec.x", wanted="1", found="2")]), "application"),
    ],
)
def test_failures_are_classed(error, found):
    assert failure_class(error) == found


def test_only_what_no_restart_repairs_is_permanent():
    permanent = [SpecError([]), NotAllowedError("403"), CheckpointDamagedError("nothing left")]
    assert all(is_permanent(error) for error in permanent)
    assert not any(
        is_permanent(error)
        for error in (UnreachableError("no answer"), RuntimeError("x"), MemoryError(), NonFiniteError(1, ["loss"], None))
    )


def test_numbers_and_memory_are_not_retried_in_place():
    classes = {"numeric": False, "oom": False, "application": True, "infra": True}
    reports = {name: FailureReport(failure_class=name, error_type="E", message="") for name in classes}
    assert {name: may_restart_in_place(report) for name, report in reports.items()} == classes


def test_a_report_names_every_problem_of_a_spec_and_no_local_variable(tmp_path):
    secret = "hunter2-in-a-local"
    try:
        raise SpecError([Problem(path="spec.a", wanted="1", found="2"), Problem(path="spec.b", wanted="3", found="4")])
    except SpecError as error:
        report = report_of(error, rank=0, node="n", incarnation=0, step=1)
    assert "spec.a: wanted 1, found 2; spec.b: wanted 3, found 4" in report.message
    assert secret not in report.traceback.replace('secret = "hunter2-in-a-local"', "")


def test_the_first_report_of_a_rank_stays_and_lost_peers_are_never_the_cause(tmp_path):
    lost = FailureReport(failure_class="infra", error_type="PeerLostError", message="", rank=0, time_unix_s=1.0)
    cause = FailureReport(failure_class="application", error_type="ValueError", message="first", rank=1, time_unix_s=2.0)
    write_report(tmp_path, cause)
    path = write_report(
        tmp_path, FailureReport(failure_class="infra", error_type="RayActorError", message="later", rank=1, time_unix_s=3.0)
    )
    assert FailureReport.read(path) == cause
    assert first_cause([lost, cause]) == cause
    assert first_cause([lost]) == lost


def test_the_interface_belongs_to_the_node_address_whatever_the_hostname_says():
    assert interface_of("127.0.0.1") == interface_of("127.0.0.3") == "lo"
    assert interface_of("203.0.113.9") == ""
    assert interface_of("fd00::1") == ""


def test_the_address_towards_a_peer_is_one_this_machine_owns():
    own = address_towards("127.0.0.1", 9)
    with socket.socket() as probe:
        probe.bind((own, 0))
    assert own == "127.0.0.1"


def test_one_rank_needs_no_environment_and_several_say_what_is_missing():
    assert (plain_facts({}, device_type="cpu").rank, plain_facts({}, device_type="cpu").world_size) == (0, 1)
    with pytest.raises(ValueError, match="WORLD_SIZE, MASTER_PORT is not"):
        plain_facts({"RANK": "1", "MASTER_ADDR": "127.0.0.1"}, device_type="cpu")
    facts = plain_facts(
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9", "SAMITE_NODE": "n"}, device_type="cpu"
    )
    assert (facts.rank, facts.world_size, facts.node, facts.meeting.node_address) == (1, 2, "n", "127.0.0.1")


def test_norms_are_summed_by_family_and_show_what_is_not_finite():
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([2.0]), torch.tensor([float("inf")])]
    sums = squared_norms(gradients, [0, 0, 1], num_families=3, is_first_rank=True)
    assert sums.tolist() == [29.0, math.inf, 0.0]
    assert squared_norms(gradients, [0, 0, 1], num_families=3, is_first_rank=False).tolist() == [0.0, 0.0, 0.0]


def test_norms_are_summed_by_layer_behind_the_families_and_show_where_they_are_not_finite():
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([2.0]), torch.tensor([float("nan")])]
    sums = squared_norms(gradients, [0, 0, 0], num_families=1, is_first_rank=True, layers=[1, 0, 2], num_layers=3)
    assert math.isnan(sums[0])
    assert sums[1:3].tolist() == [4.0, 25.0]
    assert math.isnan(sums[3])


def test_a_layer_is_named_by_its_number_in_the_decoder_or_the_tower():
    names = ("layers.3.self_attn.q_proj.weight", "vision_tower.blocks.1.wo.weight", "lm_head.weight", "mm_projector.proj_0.weight")
    assert [layer_of(name) for name in names] == ["3", "vision 1", "lm_head", "mm_projector"]


def test_clipping_scales_down_and_never_up():
    assert clip_coefficient(torch.tensor(4.0), 1.0).item() == pytest.approx(0.25)
    assert clip_coefficient(torch.tensor(0.5), 1.0).item() == 1.0
    assert clip_coefficient(torch.tensor(100.0), 0.0).item() == 1.0


@pytest.mark.parametrize("resume", ["none", "latest", "00000004-1-4de3abd1"])
def test_a_worker_group_that_was_restarted_goes_on_from_what_its_own_submission_committed(resume: str):
    from samite.spec.attempt import AttemptSpec
    from samite_workloads.train.resume import resume_of

    attempt = AttemptSpec(
        run={}, run_uid="u", stage_index=0, attempt=1, submission_id="x", run_folder="/x", num_workers=1, checkpoint_uri="/x", resume=resume
    )
    assert resume_of(attempt, incarnation=0) == resume
    assert resume_of(attempt, incarnation=1) == "latest"


def test_the_store_of_rank_0_listens_on_the_socket_that_it_kept_bound(start_processes):
    """A port that is only known to be free may be taken while torch loads; the one that is kept cannot be."""
    (program,) = start_processes(_meet_on_a_kept_port, [()])
    program.join(60)
    assert program.exitcode == 0


def _meet_on_a_kept_port() -> None:
    import socket

    from samite_workloads.parallel.group import start_groups, stop_groups
    from samite_workloads.train.ray_rendezvous import _held, take_meeting_socket

    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    _held[port] = bound
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", port))
    meeting = Rendezvous(
        rank=0, world_size=1, local_rank=0, host="127.0.0.1", port=port, node_address="127.0.0.1", listen_fd=take_meeting_socket(port)
    )
    assert take_meeting_socket(port) is None
    groups = start_groups(meeting, device_type="cpu", timeout_s=30)
    assert groups.world.size() == 1
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    stop_groups()


def test_a_worker_group_after_one_that_never_met_has_a_number_of_its_own(tmp_path, monkeypatch):
    attempt = AttemptSpec(
        run={}, run_uid="u", stage_index=0, attempt=1, submission_id="r-s00-a1", run_folder=str(tmp_path), num_workers=2, checkpoint_uri=""
    )
    monkeypatch.delenv(WORKER_GROUP, raising=False)
    assert this_incarnation(attempt) == 0
    monkeypatch.setenv(WORKER_GROUP, "1")  # group 0 failed before its ranks met, so it left no mark
    assert this_incarnation(attempt) == 1
    marks = tmp_path / "attempts" / "r-s00-a1" / "incarnations"
    marks.mkdir(parents=True)
    (marks / "1").touch()
    assert incarnations_begun(attempt) == 2
    monkeypatch.setenv(WORKER_GROUP, "0")  # a new controller begins to count again
    assert this_incarnation(attempt) == 2
