"""Failure classes: exit codes, signals, messages, first causes, precedence."""

import pytest

from samite.lifecycle import FailureClass
from samite.lifecycle.classify import RankExit, classify
from samite.lifecycle.plan import ExitCodeRule, RestartPolicy
from samite.lifecycle.signatures import first_cause, match
from samite.spec.attempt import FailureReport

POLICY = RestartPolicy()


def report(message: str, *, failure_class: str = "application", error_type: str = "RuntimeError", rank: int = 0, **more) -> FailureReport:
    return FailureReport(failure_class=failure_class, error_type=error_type, message=message, rank=rank, node=f"n{rank}", **more)


@pytest.mark.parametrize(
    ("code", "signal", "wanted", "error_type"),
    [
        (1, None, FailureClass.APPLICATION, "exit code 1"),
        (2, None, FailureClass.APPLICATION, "exit code 2"),
        (137, None, FailureClass.INFRA, "SIGKILL"),
        (None, 9, FailureClass.INFRA, "SIGKILL"),
        (143, None, FailureClass.INFRA, "SIGTERM"),
        (None, 15, FailureClass.INFRA, "SIGTERM"),
        (None, 7, FailureClass.INFRA, "SIGBUS"),
        (None, 11, FailureClass.APPLICATION, "SIGSEGV"),
        (139, None, FailureClass.APPLICATION, "SIGSEGV"),
        (134, None, FailureClass.APPLICATION, "SIGABRT"),
        (None, None, FailureClass.INFRA, "ProcessGone"),
    ],
)
def test_an_exit_has_a_class(code, signal, wanted, error_type):
    cause = classify(exits=[RankExit(rank=3, node="n1", code=code, signal=signal)], policy=POLICY)
    assert (cause.failure_class, cause.error_type, cause.ranks, cause.nodes) == (wanted, error_type, (3,), ("n1",))
    assert cause.restartable


def test_exit_code_93_means_do_not_restart_whatever_else_is_known():
    cause = classify(exits=[RankExit(rank=1, code=137), RankExit(rank=0, code=93)], reports=[report("boom")], policy=POLICY)
    assert not cause.restartable
    assert "asks not to be restarted" in cause.message


def test_137_cannot_be_given_a_policy_because_the_kernel_produces_it():
    rule = ExitCodeRule(codes=frozenset({137}), action="Fail")
    cause = classify(exits=[RankExit(rank=0, code=137)], policy=RestartPolicy(exit_codes=(rule,)))
    assert (cause.failure_class, cause.verdict) == (FailureClass.INFRA, "")


@pytest.mark.parametrize(("action", "verdict"), [("Restart", ""), ("Hold", "Hold"), ("Fail", "Fail")])
def test_a_run_can_give_its_own_exit_codes_a_meaning(action: str, verdict: str):
    rule = ExitCodeRule(codes=frozenset({41}), action=action, failure_class=FailureClass.NUMERIC)
    cause = classify(exits=[RankExit(rank=0, code=41)], policy=RestartPolicy(exit_codes=(rule,)))
    assert (cause.failure_class, cause.verdict) == (FailureClass.NUMERIC, verdict)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", FailureClass.OOM),
        ("Task was killed due to the node running low on memory.", FailureClass.OOM),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory", FailureClass.OOM),
        ("[E] gloo: connectFullMesh failed with [127.0.0.1]:40123: Connection refused", FailureClass.INFRA),
        ("RuntimeError: Gloo connectFullMesh failed on interface lo", FailureClass.INFRA),
        ("Unable to resolve hostname to a (local) address", FailureClass.INFRA),
        ("RuntimeError: [enforce fail at gloo/transport/tcp/device.cc] makeDeviceForHostname(): bind: Cannot assign", FailureClass.INFRA),
        ("socket.gaierror: [Errno -2] Name or service not known", FailureClass.INFRA),
        ("OSError: [Errno 28] No space left on device", FailureClass.INFRA),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", FailureClass.INFRA),
        ("non-finite loss at step 12", FailureClass.NUMERIC),
        ("node was preempted by the scheduler", FailureClass.PREEMPTION),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)", FailureClass.HANG),
        ("RuntimeError: Connection closed by peer [10.0.0.2]:3321", FailureClass.INFRA),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", FailureClass.INFRA),
    ],
)
def test_a_known_line_has_a_class(line: str, wanted: FailureClass):
    assert classify(log_tail=[line], policy=POLICY).failure_class is wanted
    assert classify(reports=[report(line)], policy=POLICY).failure_class is wanted


@pytest.mark.parametrize(
    "line",
    [
        "(TrainController pid=547) core_worker.cc:2465: Actor with class name: 'PreemptionWatcher' and ID: 'f0' has constructor arguments",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER=1",
        "Started the preemption watcher actor.",
    ],
)
def test_ray_s_watcher_of_preemptions_is_no_preemption(line: str):
    """Its log names it in every attempt: a driver that was killed would be taken for a preempted one."""
    message = f"Job entrypoint command failed with exit code -9, last available logs (truncated to 20,000 chars):\n{line}"
    cause = classify(job_message=message, log_tail=[line], policy=POLICY)
    assert (cause.failure_class, cause.error_type) == (FailureClass.INFRA, "SIGKILL")
    assert cause.message == "the driver of the submission ended with SIGKILL"


def test_a_driver_that_ends_by_its_own_doing_is_the_application_s():
    for code in (1, -11):
        cause = classify(job_message=f"Job entrypoint command failed with exit code {code}, last available logs: none", policy=POLICY)
        assert cause.failure_class is FailureClass.APPLICATION
    killed = "Job entrypoint command failed with exit code -9, last available logs: none"
    assert classify(job_message=killed, reports=[report("bad shape")], policy=POLICY).failure_class is FailureClass.APPLICATION


def test_the_first_cause_is_shown_when_gloo_takes_the_loopback_and_ray_is_blamed():
    lines = [
        "INFO starting rank 1",
        "[W socket.cpp] [c10d] The client socket cannot be initialized to connect to [localhost]:29500",
        "[E ProcessGroupGloo] Gloo connectFullMesh failed with [127.0.0.1]:51000 timed out",
        "Traceback (most recent call last):",
        "RuntimeError: Connection closed by peer",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ]
    cause = classify(
        reports=[report("Connection closed by peer", rank=1)],
        job_message="ray.train.WorkerGroupError: ActorDiedError",
        log_tail=lines,
        policy=POLICY,
    )
    assert cause.failure_class is FailureClass.INFRA
    assert cause.error_type == "LoopbackInterface"
    assert "127.0.0.1" in cause.message
    found = first_cause(lines)
    assert found is not None
    assert found[0] == lines[2]


def test_an_exception_wins_over_the_broken_connections_of_the_other_ranks():
    reports = [
        report("Connection reset by peer", rank=1),
        report("bad shape [2, 3]", error_type="ValueError", rank=2, traceback="Traceback: x"),
    ]
    cause = classify(reports=reports, exits=[RankExit(rank=1, signal=9), RankExit(rank=2, code=1)], policy=POLICY)
    assert (cause.failure_class, cause.ranks, cause.traceback) == (FailureClass.APPLICATION, (2,), "Traceback: x")
    assert cause.message == "ValueError: bad shape [2, 3]"


def test_a_lost_node_wins_over_the_exceptions_of_the_survivors():
    cause = classify(reports=[report("Connection closed by peer", rank=0)], lost_nodes=["n1"], policy=POLICY)
    assert (cause.failure_class, cause.error_type, cause.nodes) == (FailureClass.INFRA, "NodeLost", ("n1",))


@pytest.mark.parametrize("failure_class", ["application", "oom", "numeric", "infra", "hang"])
def test_a_node_with_a_preemption_notice_makes_it_a_preemption(failure_class: str):
    cause = classify(
        reports=[report("failed", failure_class=failure_class)], lost_nodes=["n7"], preempted_nodes=frozenset({"n7"}), policy=POLICY
    )
    assert cause.failure_class is FailureClass.PREEMPTION


def test_an_exception_on_a_node_with_a_notice_is_still_an_exception():
    cause = classify(reports=[report("bad shape")], preempted_nodes=frozenset({"n0"}), policy=POLICY)
    assert cause.failure_class is FailureClass.APPLICATION


@pytest.mark.parametrize(
    ("reports", "wanted"),
    [
        (["oom", "numeric"], FailureClass.OOM),
        (["numeric", "application"], FailureClass.NUMERIC),
        (["application", "oom"], FailureClass.OOM),
        (["hang", "application"], FailureClass.APPLICATION),
    ],
)
def test_precedence_of_classes_does_not_depend_on_order(reports: list[str], wanted: FailureClass):
    made = [report("failed", failure_class=name, rank=rank) for rank, name in enumerate(reports)]
    assert classify(reports=made, policy=POLICY).failure_class is wanted
    assert classify(reports=made[::-1], policy=POLICY).failure_class is wanted


def test_among_equal_classes_the_first_report_is_the_cause():
    made = [report("first", rank=4), report("second", rank=1)]
    assert classify(reports=made, policy=POLICY).message == "RuntimeError: first"


def test_a_killed_process_does_not_hide_an_exception():
    cause = classify(reports=[report("boom", rank=0)], exits=[RankExit(rank=1, signal=9)], policy=POLICY)
    assert cause.failure_class is FailureClass.APPLICATION


def test_nothing_known_is_said_to_be_unexplained():
    cause = classify(policy=POLICY)
    assert (cause.failure_class, cause.error_type) == (FailureClass.OPERATOR, "Unexplained")


def test_an_unknown_class_in_a_report_counts_as_the_application():
    assert classify(reports=[report("x", failure_class="martian")], policy=POLICY).failure_class is FailureClass.APPLICATION


def test_the_data_window_of_a_numeric_failure_is_kept():
    cause = classify(reports=[report("loss is nan", failure_class="numeric", data_window=[8, 16])], policy=POLICY)
    assert cause.data_window == (8, 16)


def test_a_peer_that_is_gone_on_one_machine_is_not_a_wrong_network_interface():
    line = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:38412"
    lost = report(line, error_type="PeerLostError", failure_class="infra", rank=0)
    cause = classify(reports=[lost], exits=[RankExit(rank=1)], log_tail=[line], policy=POLICY)
    assert (cause.failure_class, cause.error_type, cause.ranks) == (FailureClass.INFRA, "ProcessGone", (1,))


def test_an_exception_during_the_rendezvous_wins_over_the_peers_that_could_not_connect():
    refused = "Gloo connectFullMesh failed with [127.0.0.1]:40123: Connection refused"
    reports = [
        report(refused, error_type="PeerLostError", failure_class="infra", rank=1),
        report("bad shape", error_type="ValueError", rank=0),
    ]
    cause = classify(reports=reports, log_tail=[refused], policy=POLICY)
    assert (cause.failure_class, cause.message) == (FailureClass.APPLICATION, "ValueError: bad shape")


@pytest.mark.parametrize("message", ["socket timeout", "gloo said something new", "heartbeat lost"])
def test_a_report_of_a_lost_peer_is_a_consequence_whatever_its_words(message: str):
    reports = [report(message, error_type="PeerLostError", failure_class="infra", rank=1), report("boom", rank=0)]
    assert classify(reports=reports, policy=POLICY).message == "RuntimeError: boom"


@pytest.mark.parametrize("line", ["the pod was preempted last week", "running low on memory", "Address already in use"])
def test_a_line_in_a_log_says_less_than_an_exception_and_more_than_a_vanished_process(line: str):
    assert classify(reports=[report("boom")], log_tail=[line], policy=POLICY).message == "RuntimeError: boom"
    assert classify(exits=[RankExit(rank=1)], log_tail=[line], policy=POLICY).message == line


def test_a_report_that_says_so_is_not_restarted():
    cause = classify(reports=[report("bad spec", restartable=False), report("Connection closed by peer", rank=1)], policy=POLICY)
    assert not cause.restartable
    assert cause.message == "RuntimeError: bad spec"


RAY_DEAD_WORKER = (
    "A worker health check failed.\nThe actor died unexpectedly before finishing this task.\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
    "connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, "
    "(2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error. If the process was killed "
    "by the kernel OOM killer (verifiable by checking for OOM in dmesg of the OOMing node), consider enabling resource isolation."
)
"""As Ray 2.60 reports a rank that was killed with SIGKILL."""


@pytest.mark.parametrize(
    "text",
    [
        RAY_DEAD_WORKER,
        (
            "Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by "
            "SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV."
        ),
    ],
)
def test_what_ray_only_supposes_about_a_dead_worker_is_no_cause(text: str):
    cause = classify(reports=[report(text, error_type="WorkerHealthCheckFailedError", failure_class="infra", rank=1)], policy=POLICY)
    assert cause.failure_class is FailureClass.INFRA
    found = match(text)
    assert found is None or found.error_type == "RayActorLost"
