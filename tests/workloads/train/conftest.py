"""Micro runs for the trainer's tests: a corpus of a few documents, a model of two layers, and ranks as real processes with a hard limit."""

import json
import multiprocessing
import runpy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samite.checkpoint import Catalog
from samite.spec import load_run
from samite.spec.attempt import AttemptResult, AttemptSpec, FailureReport
from samite_workloads.checkpoint import CheckpointManager
from samite_workloads.checkpoint.reader import StoredState
from samite_workloads.data import prepare
from samite_workloads.data.documents import Document, MemorySource, Picture
from samite_workloads.parallel.group import Rendezvous, free_port
from samite_workloads.train.ranks import RankFacts

RANKS_TIMEOUT_S = 100.0

MODEL = """
    preset: tiny
    overrides: {num_layers: 3, mla_period: 2, hidden_size: 32, vocab_size: 320, kda_num_heads: 2, kda_head_dim: 16, mla_num_heads: 2,
      mla_q_lora_rank: 16, mla_kv_lora_rank: 16, mla_nope_head_dim: 16, mla_rope_head_dim: 8, mla_v_head_dim: 16, dense_hidden_size: 64,
      num_experts: 8, latent_size: 16, expert_hidden_size: 16, shared_hidden_size: 32, vision_hidden_size: 16, vision_num_layers: 1,
      vision_num_heads: 1, vision_head_dim: 16, vision_mlp_size: 32, vision_position_grid: 4, balancing_bins: 100}
"""

RUN = """
apiVersion: samite.dev/v1alpha1
kind: TrainingRun
metadata: {{name: micro}}
spec:
  seed: 3
  model: {model}
  data: {{uri: "{corpus}", mixture: [{{source: text, weight: 3}}, {{source: pictures, weight: 1}}]}}
  optimizer: {{learningRate: 0.01}}
  checkpoint: {{interval: {{steps: 2}}, keep: {{last: 100}}}}
  telemetry: {{sampleSteps: 4}}
  stages:
    - {{name: short, contextLength: 48, workers: {{max: 6}}, batch: {{tokens: 288, microBatch: 1}}, budget: {{steps: 6}}}}
    - name: long
      kind: Extend
      contextLength: 96
      workers: {{max: 3}}
      batch: {{tokens: 288, microBatch: 1}}
      budget: {{steps: 3}}
      handover: {{optimizer: Carry, lrSchedule: Carry, dataCursor: Carry}}
"""

RunAttempt = Callable[..., list[int | None]]


@pytest.fixture(scope="session")
def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 400 short texts and 60 pictures with captions."""
    folder = tmp_path_factory.mktemp("micro") / "corpus"
    chance = np.random.default_rng(0)
    words = ["silk", "thread", "loom", "weave", "warp", "weft", "six", "gold"]
    texts = [Document(parts=(f"{n} " + " ".join(chance.choice(words, 2 + n % 30)),), origin=f"text:{n}") for n in range(400)]
    pictures = [
        Document(parts=(Picture(pixels=chance.integers(0, 256, (8, 8, 1), dtype=np.uint8)), f"picture {n % 10}"), origin=f"picture:{n}")
        for n in range(60)
    ]
    prepare(folder, [MemorySource(texts, name="text"), MemorySource(pictures, name="pictures")], vocab_size=300, held_out_fraction=0.1)
    return folder


@pytest.fixture
def document(corpus_folder: Path) -> dict[str, Any]:
    """A run's document as an engine would hand it on: two stages, 6 rows of 48 tokens and 3 rows of 96 a step."""
    return load_run(RUN.format(model=MODEL, corpus=corpus_folder)).run.to_document()


@pytest.fixture
def new_attempt(tmp_path: Path, document: dict[str, Any]) -> Callable[..., AttemptSpec]:
    """Makes attempts of one run, in the run folder `folder`; each is one more than the last."""
    counts: dict[Path, int] = {}

    def make(folder: str = "run", *, ranks: int = 1, stage: int = 0, **changes: Any) -> AttemptSpec:
        place = tmp_path / folder
        counts[place] = counts.get(place, 0) + 1
        submission = f"micro-s{stage:02d}-a{counts[place]}"
        for part in (place / "control", place / "attempts" / submission):
            part.mkdir(parents=True, exist_ok=True)
        return AttemptSpec(
            **{
                "run": document,
                "run_uid": "uid-1",
                "stage_index": stage,
                "attempt": counts[place],
                "submission_id": submission,
                "run_folder": str(place),
                "num_workers": ranks,
                "checkpoint_uri": (place / "checkpoints").as_uri(),
                **changes,
            }
        )

    return make


@pytest.fixture
def start_processes() -> Iterator[Callable[..., list[Any]]]:
    """Starts `target(*args)` once for each entry of `arguments`, forked from a server that has torch loaded already. Kills whatever is left."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["samite_workloads.train.loop", "torch._dynamo", "awscrt.checksums", "numpy.random", "samite.lifecycle.handover"]
    )
    started: list[Any] = []

    def start(target: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
        processes = [context.Process(target=target, args=args, daemon=True) for args in arguments]
        for process in processes:
            process.start()
        started.extend(processes)
        return processes

    yield start
    for process in started:
        if process.is_alive():
            process.kill()
            process.join(10)


def exit_codes(processes: list[Any], timeout_s: float) -> list[int | None]:
    """Waits for all, within a hard limit; codes of processes ended by a signal are negative."""
    ends_s = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, ends_s - time.monotonic()))
    stuck = [number for number, process in enumerate(processes) if process.is_alive()]
    assert not stuck, f"processes {stuck} were still running after {timeout_s:.0f} s"
    return [process.exitcode for process in processes]


@pytest.fixture
def run_script(start_processes: Callable[..., list[Any]]) -> Callable[..., list[int | None]]:
    """Runs the Python file `script` as `world` processes, with `arguments`, `rank`, `world` and `port` as its globals."""

    def run(script: Path, world: int, *arguments: Any, timeout_s: float = RANKS_TIMEOUT_S) -> list[int | None]:
        port = free_port()
        facts = [{"arguments": arguments, "rank": rank, "world": world, "port": port} for rank in range(world)]
        return exit_codes(start_processes(runpy.run_path, [(str(script), given, "__main__") for given in facts]), timeout_s)

    return run


@pytest.fixture
def run_attempt(start_processes: Callable[..., list[Any]]) -> RunAttempt:
    """Runs an attempt's ranks as processes; returns their exit codes (0: the rank ended by itself, well or not; negative: killed)."""
    from samite_workloads.entrypoint import run_rank

    def run(attempt: AttemptSpec, *, timeout_s: float = RANKS_TIMEOUT_S, meanwhile: Callable[[], None] | None = None) -> list[int | None]:
        port, world = free_port(), attempt.num_workers
        arguments = []
        for rank in range(world):
            meeting = Rendezvous(rank=rank, world_size=world, local_rank=rank, host="127.0.0.1", port=port, node_address="127.0.0.1")
            arguments.append((attempt, RankFacts(node=f"node-{rank}", meeting=meeting, device_type="cpu")))
        processes = start_processes(run_rank, arguments)
        if meanwhile is not None:
            meanwhile()
        return exit_codes(processes, timeout_s)

    return run


@pytest.fixture
def losses() -> Callable[..., dict[int, float]]:
    """Reads the losses of a run folder by step; the last attempt that trained a step wins."""

    def read(folder: str | Path) -> dict[int, float]:
        found: dict[int, float] = {}
        for line in (Path(folder) / "metrics" / "rank-0.jsonl").read_text().splitlines():
            record = json.loads(line)
            for name, value, attributes in record["points"]:
                if name == "samite.loss" and attributes["samite.loss.kind"] == "total":
                    found[record["step"]] = value
        return found

    return read


@pytest.fixture
def ask_for_fault() -> Callable[..., None]:
    """Writes `control/faults.json` of an attempt's run folder."""

    def ask(attempt: AttemptSpec, *faults: dict[str, Any]) -> None:
        (Path(attempt.run_folder) / "control" / "faults.json").write_text(json.dumps({"faults": list(faults)}))

    return ask


@pytest.fixture
def stored() -> Callable[..., dict[str, torch.Tensor]]:
    """Reads all tensors of a checkpoint, whole, into one process."""

    def read(attempt: AttemptSpec, checkpoint_id: str) -> dict[str, torch.Tensor]:
        manager = CheckpointManager(attempt.checkpoint_uri, run_uid=attempt.run_uid, epoch=1000)
        state = StoredState(manager.store, Catalog(manager.store).manifest(checkpoint_id))
        tensors = {name: torch.empty(meta.shape, dtype=getattr(torch, meta.dtype)) for name, meta in state.tensors.items()}
        manager.restore(checkpoint_id, tensors)
        manager.close()
        return tensors

    return read


@pytest.fixture
def result_of() -> Callable[[AttemptSpec], AttemptResult]:
    """Reads how an attempt ended."""

    def read(attempt: AttemptSpec) -> AttemptResult:
        return AttemptResult.read(Path(attempt.run_folder) / "attempts" / attempt.submission_id / "result.json")

    return read


@pytest.fixture
def reports_of() -> Callable[[AttemptSpec], list[FailureReport]]:
    """Reads the failure reports of an attempt, by rank."""

    def read(attempt: AttemptSpec) -> list[FailureReport]:
        folder = Path(attempt.run_folder) / "attempts" / attempt.submission_id / "failures"
        return sorted((FailureReport.read(path) for path in folder.glob("*.json")), key=lambda report: report.rank)

    return read


@pytest.fixture
def events_of() -> Callable[..., list[dict[str, Any]]]:
    """Reads the events of a run folder, all or those of one name."""

    def read(attempt: AttemptSpec, name: str = "") -> list[dict[str, Any]]:
        lines = (Path(attempt.run_folder) / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if not name or event["name"] == name]

    return read
