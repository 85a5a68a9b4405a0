"""Two run folders that nothing connects but the bridge, and the things a rank writes into its own."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samite.errors import UnreachableError
from samite.spec.attempt import Heartbeat
from samite_workloads.bridge.messages import Answer, Greeting, Push, Welcome
from samite_workloads.bridge.rank import RankBridge
from samite_workloads.bridge.receiving import Collector
from samite_workloads.bridge.sending import RankFolder

SUBMISSION = "demo-s00-a2"


class DirectLink:
    """To a collector in this process. `dead` raises as Ray does when the actor is gone; `lose_answers` takes the push and says nothing."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.dead = False
        self.lose_answers = 0
        self.hang_s = 0.0
        self.pushes: list[Push] = []

    def greet(self, greeting: Greeting, *, timeout_s: float) -> Welcome:
        self._trouble(timeout_s)
        return self.collector.greet(greeting)

    def push(self, push: Push, *, timeout_s: float) -> Answer:
        self._trouble(timeout_s)
        self.pushes.append(push)
        answer = self.collector.push(push)
        if self.lose_answers:
            self.lose_answers -= 1
            raise UnreachableError("the answer was lost")
        return answer

    def _trouble(self, timeout_s: float) -> None:
        if self.hang_s:
            time.sleep(min(self.hang_s, timeout_s))
            raise UnreachableError("no answer in time")
        if self.dead:
            raise UnreachableError("the collector is gone")


class Rank:
    """One rank's pod and process, without the thread: `send` is one turn of it."""

    def __init__(self, pod: Path, link: DirectLink, rank: int, *, leads: bool = True) -> None:
        self.path, self.rank = pod, rank
        for part in ("heartbeats", "metrics", "control", f"attempts/{SUBMISSION}/logs", f"attempts/{SUBMISSION}/failures"):
            (pod / part).mkdir(parents=True, exist_ok=True)
        self.folder = RankFolder(pod, submission_id=SUBMISSION, rank=rank, leads=leads)
        self.bridge = RankBridge(self.folder, link, every_s=0.05)

    def send(self, *, last: bool = False) -> None:
        self.bridge._step(last=last, timeout_s=1.0)

    def append(self, name: str, text: str) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def beat(self, step: int, *, phase: str = "training", submission_id: str = SUBMISSION, incarnation: int = 0) -> Heartbeat:
        beat = Heartbeat(
            rank=self.rank,
            node=self.path.name,
            pid=os.getpid(),
            submission_id=submission_id,
            incarnation=incarnation,
            step=step,
            tokens=step * 10,
            phase=phase,
            monotonic_s=time.monotonic(),
            time_unix_s=time.time(),
        )
        beat.write(self.path / "heartbeats" / f"rank-{self.rank}.json")
        return beat


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The driver's run folder."""
    folder = tmp_path / "driver"
    (folder / "control").mkdir(parents=True)
    return folder


@pytest.fixture
def link(driver: Path) -> DirectLink:
    """To a collector that writes into the driver's folder."""
    return DirectLink(Collector(driver, SUBMISSION))


@pytest.fixture
def new_rank(tmp_path: Path, link: DirectLink) -> Callable[..., Rank]:
    """Makes a rank's process on a pod; the same pod again is the same folder."""

    def make(rank: int = 0, pod: str = "", *, leads: bool = True) -> Rank:
        return Rank(tmp_path / (pod or f"pod-{rank}"), link, rank, leads=leads)

    return make


@pytest.fixture
def lines() -> Callable[[Path], list[Any]]:
    """Reads JSON lines; fails at one that is torn."""
    return lambda file: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
