"""What the bridge costs (docs/heartbeat.md): a rank's training thread with and without it, bytes of a push, and how many ranks one collector takes.

python benchmarks/bridge.py
"""

import pickle
import statistics
import sys
import tempfile
import time
from pathlib import Path

from samite.spec.attempt import Heartbeat
from samite.telemetry.jsonlines import append_line
from samite_workloads.bridge.messages import Answer, Greeting, Push, Welcome
from samite_workloads.bridge.rank import RankBridge
from samite_workloads.bridge.receiving import Collector
from samite_workloads.bridge.sending import RankFolder

SUBMISSION = "bench-s00-a1"
STEP_S = 0.05
ROUNDS = 5
ROUND_S = 4.0


class PicklingLink:
    """Does what Ray does in the sender's process: pickles the push. Its answers confirm everything."""

    def __init__(self) -> None:
        self.bytes: list[int] = []

    def greet(self, greeting: Greeting, *, timeout_s: float) -> Welcome:  # noqa: ARG002
        return Welcome(shared=False, taken=greeting.sizes)

    def push(self, push: Push, *, timeout_s: float) -> Answer:  # noqa: ARG002
        self.bytes.append(len(pickle.dumps(push, protocol=5)))
        return Answer(taken={piece.name: piece.offset + piece.advance for piece in push.pieces})


def main() -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="samite-bench-") as place:
        rank(Path(place) / "rank")
        collector(Path(place) / "driver")
        if "--ray" in sys.argv:
            collector_under_ray(Path(place) / "driver-ray")
    return 0


def rank(folder: Path) -> None:
    """A training thread that computes for 50 ms a step, writes its heartbeat, a metrics line of 40 points and a log line."""
    link = PicklingLink()
    with_s, without_s = [], []
    for _ in range(ROUNDS):
        without_s.append(mean_step_s(folder, None))
        sender = RankFolder(folder, submission_id=SUBMISSION, rank=0, leads=True)
        bridge = RankBridge(sender, link)
        bridge.open()
        with_s.append(mean_step_s(folder, bridge))
        bridge.close()
    ratio = statistics.median(a / b for a, b in zip(with_s, without_s, strict=True))
    print(f"step of the training thread, with the bridge / without it: {ratio:.4f} (median of {ROUNDS} interleaved rounds)")
    print(f"one push a second: {statistics.median(link.bytes):.0f} bytes (median), {max(link.bytes)} at most")
    spent_s = 0.0
    for step in range(200):
        for _ in range(20):
            write_step(folder, step)
        began_s = time.process_time()
        push, signatures = sender.collect()
        sender.confirm(signatures, link.push(push, timeout_s=1.0))
        spent_s += time.process_time() - began_s
    print(f"CPU of one push of 20 steps: {spent_s / 200 * 1e3:.2f} ms")


def mean_step_s(folder: Path, bridge: RankBridge | None) -> float:
    """Mean duration of a step of pure computation and its writes."""
    for part in ("heartbeats", "metrics", f"attempts/{SUBMISSION}/logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    work = calibrate()
    found, ends_s, step = [], time.monotonic() + ROUND_S, 0
    while time.monotonic() < ends_s:
        began_s, step = time.perf_counter(), step + 1
        burn(work)
        write_step(folder, step)
        found.append(time.perf_counter() - began_s)
    assert bridge is None or bridge.pushes
    return statistics.mean(found)


def write_step(folder: Path, step: int) -> None:
    """What a rank writes in a step."""
    points = [["samite.loss", 2.31, {"samite.loss.kind": "total"}]] * 40
    beat(0, step).write(folder / "heartbeats/rank-0.json")
    append_line(folder / "metrics/rank-0.jsonl", {"time": time.time(), "step": step, "points": points})
    append_line(folder / f"attempts/{SUBMISSION}/logs/rank-0.log", {"line": f"step {step} loss 2.31 grad 1.8 0.05 s"})


_work = 0


def calibrate() -> int:
    """Rounds of `burn` that take a step."""
    global _work
    if not _work:
        began_s = time.perf_counter()
        burn(2000)
        _work = int(2000 * STEP_S / (time.perf_counter() - began_s))
    return _work


def burn(rounds: int) -> float:
    """Python work that holds the interpreter's lock, which is the worst case for a thread beside it."""
    total = 0.0
    for number in range(rounds):
        total += sum(range(50)) * number
    return total


def beat(rank: int, step: int) -> Heartbeat:
    """A heartbeat of now."""
    return Heartbeat(
        rank=rank, node=f"run-workers-{rank:05d}", pid=77, submission_id=SUBMISSION, incarnation=0, step=step, tokens=step * 4096,
        phase="training", monotonic_s=time.monotonic(), time_unix_s=time.time(), step_median_s=0.05, tokens_per_s=81_920.0, loss=2.31,
        stage_step=step, checkpoint_step=step - 1, compute_s=0.04,
    )  # fmt: skip


def collector(folder: Path) -> None:
    """Pushes of a thousand ranks, each with a new heartbeat, one after the other."""
    receiver, num_ranks = Collector(folder, SUBMISSION), 1000
    pushes = pushes_of(num_ranks)
    for push in pushes:
        receiver.push(push)
    began_s = time.perf_counter()
    for push in pushes:
        receiver.push(push)
    print(f"collector, without Ray: {num_ranks / (time.perf_counter() - began_s):.0f} pushes a second")


def pushes_of(num_ranks: int) -> list[Push]:
    """One of each rank, with a new heartbeat."""
    return [
        Push(
            folder_id=f"{number:016x}", rank=number, session=str(number), sent_at_s=time.monotonic(),
            documents={f"heartbeats/rank-{number}.json": beat(number, 5).to_json()},
        )
        for number in range(num_ranks)
    ]  # fmt: skip


def collector_under_ray(folder: Path) -> None:
    """The same through Ray's calls, 64 under way at a time, as from 64 ranks that wait for their answers."""
    import os

    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    import ray

    from samite_workloads.bridge.ray_link import start_collector

    with tempfile.TemporaryDirectory(prefix="smt-", dir="/tmp") as sockets:
        ray.init(address="local", num_cpus=1, include_dashboard=False, _temp_dir=sockets, object_store_memory=80_000_000)
        _, actor = start_collector(folder, SUBMISSION)
        pushes = pushes_of(1000)
        ray.get(actor.push.remote(pushes[0]))
        began_s, under_way = time.perf_counter(), []
        for push in pushes:
            under_way.append(actor.push.remote(push))
            if len(under_way) > 64:
                ray.get(under_way.pop(0))
        ray.get(under_way)
        print(f"collector, through Ray: {len(pushes) / (time.perf_counter() - began_s):.0f} pushes a second")
        one = []
        for push in pushes[:200]:
            began_s = time.perf_counter()
            ray.get(actor.push.remote(push))
            one.append(time.perf_counter() - began_s)
        print(f"one push there and back through Ray: {1e3 * statistics.median(one):.2f} ms (median)")
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
