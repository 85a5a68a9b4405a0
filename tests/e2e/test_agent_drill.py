"""The node agent beside a real local run: there while it trains, there again after its supervisor was killed, gone with the run."""

import re
import socket
import urllib.request
from pathlib import Path

import pytest
from local_run import LocalRun, spec_document

pytestmark = [pytest.mark.ray, pytest.mark.drill, pytest.mark.timeout(900)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def scraped(port: int, name: str) -> dict[str, float]:
    """Values of one metric by rank; nothing if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {rank: float(value) for rank, value in re.findall(rf'^{name}{{.*samite_rank="(\d+)".*}} (\S+)$', text, re.MULTILINE)}


def agents(run: LocalRun) -> list[int]:
    return [pid for pid, node in run.living().items() if node == "agent"]


def test_the_agent_tells_each_rank_while_the_run_lasts_and_one_agent_survives_a_killed_supervisor(tmp_path: Path, corpus: Path):
    port = free_port()
    with LocalRun(tmp_path, spec_document("watched", corpus, stages=1, steps=24)) as run:
        run.environment["SAMITE_AGENT_PORT"] = str(port)
        run.submit().until_step(3)
        run.until("two ranks that step", lambda: len(scraped(port, "samite_rank_step_number")) == 2, limit_s=60)
        assert scraped(port, "samite_rank_process_count") == {"0": 1.0, "1": 1.0}
        assert all(bytes_ > 50e6 for bytes_ in scraped(port, "samite_rank_memory_usage_bytes").values())
        assert all(age_s < 60.0 for age_s in scraped(port, "samite_rank_heartbeat_age_seconds").values())
        (before,) = agents(run)
        run.chaos("kill-supervisor")
        run.samite("list")
        run.until("another agent", lambda: agents(run) not in ([], [before]) and bool(scraped(port, "samite_rank_step_number")), limit_s=60)
        assert len(agents(run)) == 1
        run.until_phase("Succeeded", limit_s=200)
        run.until("nothing of it is left", lambda: not run.living(), limit_s=10, or_phase="Succeeded")
        assert scraped(port, "samite_rank_step_number") == {}


def test_nobody_listens_and_no_agent_runs(unbroken: LocalRun):
    assert "no node agent: nobody listens" in (unbroken.folder / "supervisor.log").read_text(encoding="utf-8")
