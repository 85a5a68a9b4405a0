"""Drills on real local runs: what is killed comes back, and the end is the end of the unbroken run, bit for bit.

Drill numbers are those of the platform's failure drills. Each test has a hard limit and kills what it started.
"""

import time
from pathlib import Path

import pytest
from local_run import LocalRun, spec_document

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
RECOVERY_S = 150.0
"""Limit of one recovery on two busy cores; the target on quiet ones is 30 s and `make soak-local` prints it."""


def test_an_unbroken_run_ends_clean_with_every_sample_once(unbroken: LocalRun):
    assert unbroken.status()["recoveries"] == []
    assert unbroken.step() == 28
    assert sorted(unbroken.losses()) == list(range(1, 29))
    unbroken.until("nothing of it is left", lambda: not unbroken.living(), limit_s=10, or_phase="Succeeded")
    assert unbroken.samite("checkpoints", "verify", "unbroken", "--full").returncode == 0
    assert unbroken.samite("status", "unbroken", "--exit-code").returncode == 0


def test_a_run_that_loses_a_node_a_rank_the_driver_the_head_and_its_supervisor_ends_like_the_unbroken_one(
    tmp_path: Path, corpus: Path, unbroken: LocalRun
):
    """Drills 1, 3, 7, 8 in its local form, and the power cut of a node, one after another in one run."""
    with LocalRun(tmp_path, spec_document("broken", corpus)) as run:
        run.submit().until_step(2)
        faults = (
            (5, "kill-node"),
            (8, "kill-rank", "--rank", "1"),
            (11, "stop-rank", "--rank", "0"),
            (16, "kill-head"),
            (19, "kill-driver"),
        )
        for times, (step, *fault) in enumerate(faults, start=1):
            run.until_step(int(step), limit_s=RECOVERY_S)
            if fault[0] == "kill-head":
                # Ranks train on without a head for some seconds; slow ones do not reach the end of the run in that time.
                run.chaos("slow", "--rank", "0", "--factor", "12", "--times", "6")
            run.chaos(*map(str, fault))
            run.until_recovered(times, limit_s=RECOVERY_S)
        run.until_step(21, limit_s=RECOVERY_S)
        before = run.document("cluster.json")["nodes"]
        run.chaos("kill-supervisor")
        time.sleep(1)
        assert "its supervisor was gone" in run.samite("list").stderr
        run.until_step(23)
        assert run.document("cluster.json")["nodes"] == before, "adopting restarts nothing"
        assert {node["process"]["pid"] for node in before} <= set(run.living())
        assert len(run.status()["recoveries"]) == len(faults), "a killed supervisor is no failure of the run"
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        assert run.final_weights() == unbroken.final_weights()
        assert run.losses() == unbroken.losses()
        levels = [recovery["level"] for recovery in run.status()["recoveries"]]
        assert (levels[0], levels[3]) == (2, 3)
        run.until("nothing of it is left", lambda: not run.living(), limit_s=10, or_phase="Succeeded")


def test_a_rank_that_fails_three_times_the_same_way_is_held_with_its_traceback(tmp_path: Path, corpus: Path):
    """Drill 2."""
    with LocalRun(tmp_path, spec_document("faulty", corpus, stages=1)) as run:
        run.submit().until_step(2)
        run.chaos("exception", "--rank", "1", "--times", "20")
        run.until_phase("Held", limit_s=300)
        failure = run.status()["lastFailure"]
        assert failure["failureClass"] == "application"
        assert "InjectedFaultError" in failure["traceback"]
        assert run.samite("status", "faulty", "--exit-code", check=False).returncode == 10
        assert run.living(), "the nodes are kept for a while, to look around"
        run.samite("cancel", "faulty", "--yes", "--wait", timeout_s=120)
        run.until("the nodes are given back", lambda: not run.living(), limit_s=60, or_phase="Cancelled")


@pytest.mark.drill
def test_a_rank_asleep_inside_its_step_is_only_reported_when_detection_observes(tmp_path: Path, corpus: Path):
    """Drill 4, first half: Ray alone never reacts, and Observe must not."""
    detection = {"hang": {"mode": "Observe", "floorSeconds": 5, "learningWindows": 1}}
    with LocalRun(tmp_path, spec_document("sleepy", corpus, stages=1, detection=detection)) as run:
        run.submit().until_step(4)
        run.chaos("sleep", "--rank", "1", "--seconds", "25")
        run.until("a suspicion", lambda: bool(run.events("samite.hang.suspected")), limit_s=60)
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        assert run.status()["restarts"].get("hang", 0) == 0
        assert run.status()["attempt"] == 1


def test_a_rank_asleep_inside_its_step_is_restarted_when_detection_may(tmp_path: Path, corpus: Path):
    """Drill 4, second half."""
    with LocalRun(tmp_path, spec_document("sleepier", corpus, stages=1)) as run:
        run.submit().until_step(4)
        run.chaos("sleep", "--rank", "1", "--seconds", "600")
        run.until("a hang on two facts", lambda: bool(run.events("samite.failure.detected")), limit_s=90)
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        (failure,) = run.events("samite.failure.detected")
        assert failure["samite.failure.class"] == "hang"
        assert {fact.partition(":")[0] for fact in failure["samite.evidence"]} >= {"heartbeat", "process_table"}
        assert run.status()["restarts"] == {"hang": 1}


@pytest.mark.drill
def test_a_nan_rolls_back_and_leaves_the_data_window_out(tmp_path: Path, corpus: Path):
    """Drill 16, first half: every rank refuses the step before the optimizer."""
    with LocalRun(tmp_path, spec_document("poisoned", corpus, stages=1)) as run:
        run.submit().until_step(5)
        run.chaos("nan", "--rank", "1")
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        failures = run.events("samite.failure.detected")
        assert [failure["samite.failure.class"] for failure in failures] == ["numeric"]
        assert run.status()["restarts"] == {"numeric": 1}


@pytest.mark.drill
def test_a_gradient_that_swells_goes_back_before_the_spike_and_leaves_its_rows_out(tmp_path: Path, corpus: Path):
    """Drill 16, second half: the steps of a spike are taken before it is known, and a checkpoint among them must not be resumed from."""
    numeric = {"onSpike": "RollBack", "rollBackSteps": 3}
    with LocalRun(tmp_path, spec_document("spiky", corpus, stages=1, steps=40, every=2, detection={"numeric": numeric})) as run:
        run.submit().until_step(26)
        run.chaos("spike", "--rank", "1", "--factor", "1000", "--times", "3")
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        status = run.status()
        (failure,) = run.events("samite.failure.detected")
        assert (failure["samite.failure.class"], failure["error.type"]) == ("numeric", "GradNormSpike")
        (spike,) = run.events("samite.grad.norm.spike")
        first, last = spike["samite.step.first"], spike["samite.step.index"]
        assert last == first + 2
        window = [(first - 1) * 8, last * 8]  # 1,024 tokens of rows of 128
        assert (spike["samite.data.window"], status["skippedDataWindows"]) == (window, [window])
        assert spike["samite.layer.block"] in failure["samite.message"]
        (resumed,) = [e["samite.step.resumed"] for e in run.events("samite.training.started") if e["samite.step.resumed"]]
        assert first - 5 <= resumed <= first - 4, "three steps before the last good one, or the checkpoint before that"
        withdrawn = {event["samite.step.index"] for event in run.events("samite.checkpoint.quarantined")}
        assert withdrawn, "one at least was taken between"
        assert all(resumed < step <= last for step in withdrawn)
        assert (run.step(), status["restarts"]) == (40, {"numeric": 1})
        assert f"left out data rows {window[0]} to {window[1] - 1}" in run.samite("status", "spiky").stdout
        run.samite("report", "spiky")
        assert "24 data rows left out" in (run.folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.drill
def test_a_slow_rank_is_reported_and_not_restarted_and_a_handover_survives_a_dead_supervisor(tmp_path: Path, corpus: Path):
    """Drills 6 and 29: one run, because neither disturbs the other."""
    detection = {"straggler": {"mode": "Report", "factor": 1.5, "steps": 5}}
    with LocalRun(tmp_path, spec_document("slow", corpus, detection=detection)) as run:
        run.submit().until_step(2)
        run.chaos("slow", "--rank", "1", "--factor", "4", "--times", "10")
        run.until("the hand-over", lambda: bool(run.events("samite.stage.handover.committed")), limit_s=RECOVERY_S)
        run.chaos("kill-supervisor")
        run.samite("list")
        run.until_phase("Succeeded", limit_s=RECOVERY_S)
        assert [event["samite.stage.name"] for event in run.events("samite.stage.started")] == ["s0", "s1"]
        assert sorted(path.name for path in (run.folder / "attempts").iterdir()) == ["slow-s00-a1", "slow-s01-a2"]
        assert run.status()["restarts"] == {}
        assert run.events("samite.straggler.detected")


@pytest.mark.drill
def test_lost_decay_products_pause_the_run_at_its_next_checkpoint_without_a_restart(tmp_path: Path, corpus: Path):
    """Drill 17: the event is written as the trainer writes it; what the engine does about it is real."""
    from samite.telemetry.events import EventLog

    with LocalRun(tmp_path, spec_document("decaying", corpus, stages=1, steps=60)) as run:
        run.submit().until_step(3)
        EventLog(run.folder / "events.jsonl").emit(
            "samite.decay.underflow", decay_cause="lossy_flush", decay_lost=12, step_index=run.step()
        )
        run.until_phase("Held", limit_s=RECOVERY_S)
        status = run.status()
        assert status["restarts"] == {}
        assert "decay" in (status["reason"] + status["message"]).lower()
        assert status["lastCheckpointStep"] == status["progress"]["step"], "nothing is lost by pausing"


@pytest.mark.drill
def test_cancel_suspend_and_resume_do_what_they_say(tmp_path: Path, corpus: Path):
    with LocalRun(tmp_path, spec_document("paused", corpus, stages=1, steps=40)) as run:
        run.submit().until_step(3)
        run.samite("suspend", "paused", "--wait", timeout_s=200)
        saved = run.status()["lastCheckpointStep"]
        assert saved >= 3, "a checkpoint was taken on the way out"
        run.until("the nodes are given back", lambda: not run.living(), limit_s=30, or_phase="Suspended")
        run.samite("resume", "paused", "--wait", timeout_s=200)
        run.until_step(saved + 1)
        assert run.status()["recomputedSteps"] == 0
        run.samite("cancel", "paused", "--yes", "--wait", timeout_s=200)
        run.until("nothing of it is left", lambda: not run.living(), limit_s=30, or_phase="Cancelled")
        assert run.samite("status", "paused", "--exit-code", check=False).returncode == 9
        assert not Path(run.document("cluster.json")["temporary_folder"]).exists()
