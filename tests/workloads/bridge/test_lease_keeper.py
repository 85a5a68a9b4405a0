"""The driver's Lease against a real HTTPS server: renewed, versioned, fenced, and never a reason to stop training."""

import json
import logging
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from api_stand_in import LeaseServer

from samite.errors import ConflictError, NotAllowedError, NotFoundError, UnreachableError
from samite.spec.attempt import AttemptResult, FailureReport
from samite.spec.lease import read_lease
from samite.telemetry.jsonlines import append_line
from samite_workloads.bridge.api_server import ApiServer
from samite_workloads.bridge.control_files import ControlFiles
from samite_workloads.bridge.folder_facts import FolderFacts
from samite_workloads.bridge.lease import LeaseKeeper, NotMineError
from samite_workloads.train.reports import write_report

MINE = "demo-s00-a2"
SUBMISSION, CONTROL = "samite.dev/submission", "samite.dev/control"


@pytest.fixture
def server(tmp_path):
    server = LeaseServer(tmp_path / "api")
    server.write({SUBMISSION: MINE}, **{"samite.dev/run-uid": "uid-1"})
    yield server
    server.stop()


@pytest.fixture
def fenced() -> list[str]:
    return []


@pytest.fixture
def keeper(server, driver, fenced):
    api = ApiServer(server.address, account=server.account, timeout_s=0.5)
    made = LeaseKeeper(
        api,
        name="demo-heartbeat",
        namespace=api.namespace,
        submission_id=MINE,
        run_uid="uid-1",
        holder="pod-head",
        facts=FolderFacts(driver, MINE),
        control=ControlFiles(driver),
        on_fenced=fenced.append,
        every_s=0.1,
    )
    yield made
    made.close(patience_s=0.2)


def until(condition, limit_s: float = 20.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < ends_s, "waited too long"
        time.sleep(0.02)


def test_the_lease_tells_all_that_the_folder_knows(server, keeper, driver, new_rank):
    rank = new_rank()
    rank.send()
    rank.beat(7)
    write_report(rank.path / f"attempts/{MINE}/failures", FailureReport(failure_class="oom", error_type="MemoryError", message="m", rank=0))
    rank.send()
    committed = {"samite.checkpoint.id": "00000006-2-abcdef01", "samite.step.index": 6}
    append_line(driver / "events.jsonl", {"name": "samite.checkpoint.committed", "attributes": committed})
    AttemptResult(outcome="failed", submission_id=MINE, step=7, tokens=70).write(driver / f"attempts/{MINE}/result.json")
    keeper.renew()
    report = read_lease(server.annotations, seen_at_s=1000.0)
    assert (report.submission_id, report.num_ranks, report.signs[0].heartbeat.step) == (MINE, 1, 7)
    assert 999.0 < report.signs[0].heartbeat.monotonic_s <= report.signs[0].heard_at_s <= 1000.0
    assert (report.failures[0].error_type, report.result.outcome) == ("MemoryError", "failed")
    assert (report.checkpoint_id, report.checkpoint_step) == ("00000006-2-abcdef01", 6)
    assert server.lease["spec"]["holderIdentity"] == "pod-head"
    assert server.lease["spec"]["renewTime"].endswith("Z")


def test_only_what_changed_is_written_again_over_one_connection(server, keeper, new_rank):
    rank = new_rank()
    rank.send()
    write_report(rank.path / f"attempts/{MINE}/failures", FailureReport(failure_class="oom", error_type="E", message="m", rank=0))
    rank.send()
    for _ in range(3):
        keeper.renew()
    assert [sorted(patch["metadata"]["annotations"]) for patch in server.patches][1:] == [[], []]
    assert [command for command, _ in server.requests] == ["GET", "PATCH", "PATCH", "PATCH"]
    assert server.connections == 1


def test_what_the_attempt_before_left_is_taken_away(server, keeper):
    server.write({"samite.dev/result": '{"outcome":"failed"}', "samite.dev/failures": "[]"})
    keeper.renew()
    assert sorted(server.annotations) == [SUBMISSION]


def test_control_documents_come_with_the_answer_and_go_with_it(server, keeper, driver):
    keeper.renew()
    server.write({CONTROL: json.dumps({"checkpoint.json": {"request": "1"}})})
    with pytest.raises(ConflictError):
        keeper.renew()
    keeper.renew()
    assert json.loads((driver / "control/checkpoint.json").read_text()) == {"request": "1"}
    server.write({CONTROL: "{"})
    keeper._version = ""
    keeper.renew()
    assert (driver / "control/checkpoint.json").exists()
    server.write({CONTROL: None})
    keeper._version = ""
    keeper.renew()
    assert not (driver / "control/checkpoint.json").exists()


def test_a_write_in_between_is_a_conflict_that_costs_one_more_read(server, keeper, driver):
    keeper.start()
    until(lambda: keeper.renewals > 1)
    server.write({CONTROL: json.dumps({"stop.json": {"request": "1"}})})
    until((driver / "control/stop.json").exists)
    assert ("PATCH", 409) in server.requests
    assert keeper.errors == 0


def test_a_newer_attempt_takes_over_and_the_older_never_writes_again(server, keeper, fenced):
    keeper.start()
    until(lambda: keeper.renewals > 0)
    server.write({SUBMISSION: "demo-s00-a3"})
    until(lambda: fenced)
    written = len(server.patches)
    time.sleep(0.4)
    assert len(server.patches) == written
    assert fenced == ["attempt demo-s00-a3 has taken over"]
    assert not keeper.close(patience_s=0.5)
    assert len(server.patches) == written


def test_not_even_a_patch_under_way_goes_over_a_newer_attempts_lease(server, keeper, fenced):
    keeper.renew()
    server.troubles = [lambda: server.write({SUBMISSION: "demo-s00-a3"})]
    with pytest.raises(ConflictError):
        keeper.renew()
    with pytest.raises(NotMineError):
        keeper.renew()
    assert fenced
    assert len(server.patches) == 1


def test_a_run_made_anew_under_the_same_name_fences_the_old_runs_driver(server, keeper, fenced):
    server.write({SUBMISSION: "demo-s00-a1"}, **{"samite.dev/run-uid": "uid-2"})
    with pytest.raises(NotMineError):
        keeper.renew()
    assert fenced == ["its Lease is that of another run with the same name (uid uid-2)"]


@pytest.mark.parametrize("owner", ["demo-s00-a1", None])
def test_a_lease_that_does_not_name_this_attempt_yet_is_waited_for(server, keeper, fenced, owner):
    server.write({SUBMISSION: owner})
    keeper.start()
    until(lambda: keeper.errors > 1)
    assert (server.patches, fenced) == ([], [])
    server.write({SUBMISSION: MINE})
    until(lambda: keeper.renewals > 0)


@pytest.mark.parametrize("trouble", [500, 503, 429, 403, 404, 409, "hang", "cut", "garbage"])
def test_no_trouble_of_the_api_server_ends_the_renewing(server, keeper, fenced, trouble, caplog):
    keeper.start()
    until(lambda: keeper.renewals > 0)
    with caplog.at_level(logging.WARNING):
        server.troubles = [trouble] * (2 if trouble == 429 else 4)
        until(lambda: not server.troubles)
        renewals = keeper.renewals
        until(lambda: keeper.renewals > renewals)
    assert fenced == []
    assert len(caplog.records) <= 1


def test_an_api_server_that_is_down_for_a_while_is_survived(server, keeper):
    keeper.start()
    until(lambda: keeper.renewals > 0)
    server.stop()
    until(lambda: keeper.errors > 3)
    server.start()
    renewals = keeper.renewals
    until(lambda: keeper.renewals > renewals)


def test_a_token_that_rotates_is_read_again(server, keeper):
    keeper.renew()
    server.rotate("second")
    keeper.renew()
    (server.account / "token").write_text("worn out")
    with pytest.raises(NotAllowedError, match="get and patch on its run's Lease"):
        keeper.renew()
    server.rotate("third")
    keeper.renew()


def test_a_certificate_of_somebody_else_is_refused(server, tmp_path):
    other = LeaseServer(tmp_path / "other")
    try:
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            ApiServer(other.address, account=server.account, timeout_s=2.0).get("/")
    finally:
        other.stop()


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again(server):
    api = ApiServer(server.address, account=server.account, timeout_s=2.0)
    path = "/apis/coordination.k8s.io/v1/namespaces/team/leases/demo-heartbeat"
    api.get(path)
    server.stop()
    server.start()
    assert api.get(path)["metadata"]["name"] == "demo-heartbeat"
    with pytest.raises(NotFoundError):
        api.get(path + "-other")
    api.close()


def test_the_end_waits_until_the_result_is_there_but_not_for_ever(server, keeper, driver):
    keeper.start()
    until(lambda: keeper.renewals > 0)
    (driver / f"attempts/{MINE}").mkdir(parents=True)
    AttemptResult(outcome="stage_complete", submission_id=MINE, step=9, tokens=90).write(driver / f"attempts/{MINE}/result.json")
    server.troubles = [503, 503]
    assert keeper.close(patience_s=5.0)
    assert read_lease(server.annotations, seen_at_s=0.0).result.step == 9


def test_an_end_without_an_api_server_takes_its_bound_only(server, keeper):
    keeper.start()
    until(lambda: keeper.renewals > 0)
    server.troubles = ["hang"] * 50
    began_s = time.monotonic()
    assert not keeper.close(patience_s=1.0)
    assert time.monotonic() - began_s < 2.5


def test_outside_of_a_pod_there_is_no_api_server(tmp_path, server):
    assert ApiServer.of_this_pod({}, account=server.account) is None
    assert ApiServer.of_this_pod({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, account=tmp_path) is None
    found = ApiServer.of_this_pod({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, account=server.account)
    assert found is not None
    assert found._address.netloc == "[fd00::1]:6443"
