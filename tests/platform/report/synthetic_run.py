"""Writes a plausible run folder: two stages, one killed node in the second, everything that a real run leaves behind.

`python tests/platform/report/synthetic_run.py FOLDER` makes one to look at. Same seed, same bytes.
"""

import json
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samite.telemetry import jsonlines, names
from samite.telemetry.events import EventRecord
from samite.telemetry.instruments import Severity
from samite.telemetry.records import MetricRecord, Point

START_S = 1_764_600_000.0
STAGES = (("pretrain-2k", "Pretrain", 2048), ("extend-4k", "Extend", 4096))
STEPS = (120, 90)
LAYERS = (1, 2, 4, 5)
RESOURCE = {"service.name": "samite-supervisor", "service.version": "0.1.0", "samite.run.name": "quickstart", "samite.run.uid": "0f3c9a52"}
SPEC = {
    "apiVersion": "samite.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "quickstart"},
    "spec": {
        "engine": "Local",
        "seed": 7,
        "model": {"preset": "tiny"},
        "stages": [
            {"name": name, "kind": kind, "contextLength": length, "batch": {"tokens": 16384}, "budget": {"steps": steps}}
            for (name, kind, length), steps in zip(STAGES, STEPS, strict=True)
        ],
    },
}


@dataclass
class Writer:
    folder: Path
    random: random.Random
    now_s: float = START_S
    recoveries: list = field(default_factory=list)
    tokens: int = 0

    def event(self, name: str, /, severity: str | None = None, **attributes: Any) -> None:
        record = EventRecord(
            time_unix_s=self.now_s,
            name=name,
            severity=Severity(severity) if severity else names.event(name).severity,
            attributes=names.event_attributes(name, attributes),
            resource=RESOURCE,
        )
        jsonlines.append_line(self.folder / "events.jsonl", record.to_document())

    def phase(self, before: str, after: str, reason: str) -> None:
        self.event("samite.run.phase.changed", phase_from=before, phase_to=after, reason=reason)

    def step(self, rank: int, step: int, attempt: str, stage: tuple, points: list[Point]) -> None:
        record = MetricRecord(
            time_unix_s=self.now_s,
            points=tuple(point.checked() for point in points),
            step=step,
            attempt=attempt,
            stage={"samite.stage.name": stage[0], "samite.stage.kind": stage[1]},
        )
        jsonlines.append_line(self.folder / f"metrics/rank-{rank}.jsonl", record.to_document())


def write_run(
    folder: Path, *, seed: int = 1, kill_at: int = 167, checkpoint_every: int = 30, num_ranks: int = 2, steps: tuple[int, ...] = STEPS
) -> Path:
    """The run in `folder`, which is made. `kill_at` is the step at which a node dies (beyond the last step: never)."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(folder, random.Random(seed))
    _submit(writer)
    step, last_commit, number = 0, 0, 1
    for index, stage in enumerate(STAGES):
        attempt = f"quickstart-s{index:02d}-a{number}"
        writer.event("samite.stage.started", stage_name=stage[0], stage_context_length=stage[2], stage_layout="data=2", stage_index=index)
        writer.event("samite.attempt.started", attempt_number=number, attempt_submission=attempt, nodes=["node-1", "node-2"])
        end, recomputed_until = step + steps[index], 0
        while step < end:
            step += 1
            _train(writer, step, attempt, stage, recomputed=step <= recomputed_until, num_ranks=num_ranks)
            if step % checkpoint_every == 0 and step <= end:
                last_commit = step
                _commit(writer, step, number, stage)
            if step == kill_at:
                recomputed_until, step, number = step, last_commit, number + 1
                attempt = f"quickstart-s{index:02d}-a{number}"
                _recover(writer, recomputed_until, last_commit, number)
                kill_at = -1
        writer.event("samite.stage.finished", stage_name=stage[0], tokens_trained=writer.tokens)
        number += 1
        if index + 1 < len(STAGES):
            writer.event(
                "samite.stage.handover.committed",
                checkpoint_id=f"s{index}",
                handover_hash="9c1d",
                handover_carried=["weights", "optimizer"],
            )
            writer.phase("Running", "Starting", f"stage {STAGES[index + 1][0]}")
            writer.now_s += 6.0
            writer.phase("Starting", "Running", "first step done")
    writer.phase("Running", "Succeeded", "all stages finished")
    _status(writer, step)
    return folder


def _submit(writer: Writer) -> None:
    (writer.folder / "spec.json").write_text(json.dumps({"uid": "0f3c9a52", "submittedAt": START_S, "run": SPEC}))
    (writer.folder / "run.yaml").write_text("# yaml-language-server: $schema=samite.json\n" + json.dumps(SPEC, indent=2))
    writer.event("samite.run.submitted", actor="ada")
    writer.now_s += 0.4
    writer.phase("Pending", "Provisioning", "spec is valid")
    writer.now_s += 7.0
    writer.phase("Provisioning", "Starting", "2 nodes ready")
    writer.now_s += 9.5
    writer.phase("Starting", "Running", "first step done")


def _train(writer: Writer, step: int, attempt: str, stage: tuple, *, recomputed: bool, num_ranks: int) -> None:
    noise = random.Random(step * 7919 + (0 if recomputed else 1))
    slow = 1.5 if stage[2] > 2048 else 1.0
    parts = {
        "compute": 0.42 * slow * noise.uniform(0.95, 1.1),
        "communication": 0.06 * noise.uniform(0.8, 1.5),
        "data": 0.012 * noise.uniform(0.5, 2.0),
        "optimizer": 0.07 * noise.uniform(0.9, 1.1),
    }
    total = sum(parts.values()) + 0.01
    writer.now_s += total
    loss = 2.1 + 5.6 * math.exp(-step / 38) + 0.05 * noise.gauss(0, 1)
    vision = 1.1 + 6.2 * math.exp(-step / 26) + 0.12 * noise.gauss(0, 1)
    norm = 0.9 + 4.0 * math.exp(-step / 25) + 0.1 * abs(noise.gauss(0, 1)) + (6.0 if step == 83 else 0.0)
    points = [
        Point("samite.step.number", step),
        *(Point("samite.step.duration", seconds, {"samite.step.part": part}) for part, seconds in {**parts, "total": total}.items()),
        Point("samite.loss", 0.8 * loss + 0.2 * vision, {"samite.loss.kind": "total"}),
        Point("samite.loss", loss, {"samite.loss.kind": "text"}),
        Point("samite.loss", vision, {"samite.loss.kind": "vision"}),
        Point("samite.grad.norm", norm, {"samite.param.group": "global"}),
        Point("samite.optimizer.learning_rate", 0.02 * min(1, step / 10) * (0.55 + 0.45 * math.cos(math.pi * step / 210))),
    ]
    shares = {"attention": 0.55, "expert": 0.5, "dense": 0.3, "router": 0.12, "embedding": 0.45, "vision": 0.25, "other": 0.05}
    points += [
        Point("samite.grad.norm", norm * share * noise.uniform(0.9, 1.1), {"samite.param.group": group}) for group, share in shares.items()
    ]
    kind = "recomputed" if recomputed else "trained"
    points += [
        Point("samite.tokens", n, {"samite.token.kind": kind, "samite.modality": m}) for m, n in (("text", 14_000), ("image", 2_100))
    ]
    points.append(Point("samite.tokens", 284, {"samite.token.kind": "padded"}))
    writer.tokens += 0 if recomputed else 16_100
    if step % 5 == 0 or step < 10:
        points += _samples(step, noise)
    memory = [Point("process.memory.usage", (1.3 + 0.25 * (stage[2] > 2048) + 0.0004 * step) * 2**30 * noise.uniform(0.995, 1.005))]
    writer.step(0, step, attempt, stage, points + memory)
    for rank in range(1, num_ranks):
        writer.step(rank, step, attempt, stage, [Point("process.memory.usage", memory[0].value * (0.97 - 0.01 * rank))])


def _samples(step: int, noise: random.Random) -> list[Point]:
    points = []
    for layer in LAYERS:
        block = {"samite.layer.block": str(layer)}
        floor = math.sqrt(2 * math.log(16) / 2048)
        points += [
            Point("samite.moe.expert.load.maxvio", floor * noise.uniform(0.7, 1.2) + 3.0 * math.exp(-step / 3.5), block),
            Point("samite.moe.expert.load.maxvio_floor", floor, block),
            Point("samite.moe.expert.load.cv", 0.05 * noise.uniform(0.8, 1.2) + 1.1 * math.exp(-step / 3), block),
            Point("samite.moe.expert.idle.count", 3 if step < 2 else 0, block),
            Point("samite.moe.router.entropy", 2.77 - 0.002 * step * layer / 5, block),
            Point("samite.decay.underflow", 0.0, {**block, "samite.decay.kind": "state"}),
            Point("samite.decay.lossy_flushes", 0, block),
            Point("samite.decay.tile.margin", 88.72 - 22 - 4 * layer - 0.03 * step, block),
            Point("samite.decay.gate.saturated", 0.002 * layer + 0.0001 * step * noise.uniform(0.9, 1.1), block),
            Point("samite.decay.gate.open", 0.05 / layer, block),
            Point("samite.decay.head.memoryless", 0.0, block),
            Point("samite.decay.beta.saturated", 0.01 * noise.uniform(0.5, 1.5), block),
            Point("samite.decay.chunk.forgotten", 0.04 * layer + 0.0002 * step, {**block, "samite.decay.threshold": "normal"}),
        ]
    return points


def _commit(writer: Writer, step: int, number: int, stage: tuple) -> None:
    writer.now_s += 0.05
    name = f"e{number:04d}-i0-s{step:09d}"
    writer.event(
        "samite.checkpoint.committed",
        checkpoint_id=name,
        step_index=step,
        checkpoint_bytes=38_417_000 + step,
        checkpoint_shards=2,
        duration=1.3 + 0.2 * writer.random.random(),
        stage_name=stage[0],
    )
    writer.now_s += 0.2
    writer.event("samite.checkpoint.verified", checkpoint_id=name, step_index=step, checkpoint_level="full")


def _recover(writer: Writer, died_at: int, resumed_from: int, number: int) -> None:
    fault_s = writer.now_s
    writer.event("samite.chaos.injected", chaos_kind="kill-node", actor="ada", node="node-2")
    writer.now_s += 1.4
    evidence = ["process group of node-2 is gone (0.3 s ago)", "heartbeat of rank 1 is 1.4 s old"]
    writer.event("samite.failure.detected", failure_class="infra", fault_time=fault_s, node="node-2", ranks=[1], evidence=evidence)
    writer.event("samite.restart.decided", restart_level="L2", failure_class="infra", restart_backoff=0.0, restart_budget_left=19)
    writer.phase("Running", "Recovering", "node-2 was lost: next attempt on a replacement node")
    writer.event("samite.attempt.ended", "ERROR", attempt_number=number - 1, attempt_outcome="failed", step_last=died_at, step_recomputed=0)
    writer.now_s += 5.2
    writer.event("samite.node.replaced", node="node-3")
    writer.event(
        "samite.attempt.started", attempt_number=number, attempt_submission=f"quickstart-s01-a{number}", nodes=["node-1", "node-3"]
    )
    writer.now_s += 9.9
    writer.event("samite.checkpoint.restored", checkpoint_id=f"e0002-i0-s{resumed_from:09d}", step_index=resumed_from, duration=1.1)
    writer.now_s += 1.9
    durations = {"detect": 1.4, "restart": 14.0, "load": 1.1, "first_step": writer.now_s - fault_s - 16.5}
    writer.phase("Recovering", "Running", "first new step done")
    lost = died_at - resumed_from
    writer.event(
        "samite.recovery.finished",
        restart_level="L2",
        failure_class="infra",
        duration=writer.now_s - fault_s,
        step_recomputed=lost,
        **{f"duration_{part}": seconds for part, seconds in durations.items()},
    )
    document = {
        "level": 2,
        "failureClass": "infra",
        "errorType": "NodeLost",
        "attempt": number,
        "atS": writer.now_s,
        "recomputedSteps": lost,
    }
    camel = {"detect": "detectS", "restart": "restartS", "load": "loadS", "first_step": "firstStepS"}
    writer.recoveries.append({**document, **{camel[part]: seconds for part, seconds in durations.items()}})


def _status(writer: Writer, step: int) -> None:
    wall_s = writer.now_s - START_S
    lost = {
        "queue": 0.4,
        "start": 22.5,
        "detect": 1.4,
        "restart": 14.0,
        "load": 1.1,
        "recompute": 13.0,
        "checkpointStall": 0.9,
        "hold": 0.0,
    }
    if not writer.recoveries:
        lost = {
            "queue": 0.4,
            "start": 22.5,
            "detect": 0.0,
            "restart": 0.0,
            "load": 0.0,
            "recompute": 0.0,
            "checkpointStall": 0.9,
            "hold": 0.0,
        }
    productive = wall_s - sum(lost.values())
    status = {
        "phase": "Succeeded",
        "reason": "Finished",
        "message": "all stages finished",
        "currentStage": STAGES[-1][0],
        "attempt": 3,
        "progress": {"step": step, "tokens": writer.tokens, "percent": 100.0, "tokensPerS": None},
        "ettr": {"percent": 100 * productive / wall_s, "productiveS": productive, "wallS": wall_s, "suspendedS": 0.0, "lost": lost},
        "restarts": {"infra": len(writer.recoveries)},
        "recoveries": writer.recoveries,
        "recomputedSteps": sum(recovery["recomputedSteps"] for recovery in writer.recoveries),
    }
    (writer.folder / "status.json").write_text(json.dumps(status))


if __name__ == "__main__":
    print(write_run(Path(sys.argv[1])))
