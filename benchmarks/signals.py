"""What signals cost: steps with all of them against steps with none, in one process, on the same model and data, in turn.

    make bench-signals                                   preset tiny on CPU, JSON lines and OTLP to a receiver of its own
    python benchmarks/signals.py --device cuda           preset small on one GPU (no pydantic needed there; OTLP where its packages are)

Steps go off, told, off, sampled. *Off*: the heartbeat and the guard against non-finite values, which are no signals. *Told*: metrics and events of the
step, spikes looked for, a log line, OTLP. *Sampled*: decay, router and memory signals as well; of every `--sample` steps one is. What telling costs is
read inside the step (processor time of this thread there, and of the exporter's threads); what sampling costs is the difference to the step before.
On CPU times are processor time, so that a busy machine disturbs little; on CUDA wall clock, with the device waited for at the end of each step
of both kinds. Medians and middle halves over all steps. Exit code 1 if signals cost more than `--limit` of a step.
"""

import argparse
import contextlib
import io
import itertools
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("platform", "workloads", "kernels") if str(ROOT / folder) not in sys.path]

from samite.spec.attempt import AttemptSpec  # noqa: E402 - the paths above make it work from a bare checkout
from samite_workloads.train.learner import Learner  # noqa: E402
from samite_workloads.train.loop import Parts, run_steps  # noqa: E402
from samite_workloads.train.observe import Observer, StepRecord  # noqa: E402
from samite_workloads.train.plan import plan_of  # noqa: E402
from samite_workloads.train.ranks import plain_facts  # noqa: E402
from samite_workloads.train.resume import open_loader, restore_or_begin  # noqa: E402
from samite_workloads.train.saving import NothingSaved  # noqa: E402
from samite_workloads.train.session import open_session  # noqa: E402

KINDS = ("off", "told", "off", "sampled")


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of one step: all of it, what this thread spent on telling, and what other threads computed meanwhile."""

    kind: str
    total_s: float
    telling_s: float
    others_s: float


class Switched(Observer):
    """The trainer's observer, which tells only some steps."""

    def start(self, *, cuda: bool) -> None:
        """Begin to measure."""
        self.cuda = cuda
        self.steps: list[Step] = []
        self._began = self._now()

    def samples(self, step: int) -> bool:
        """One in four, whatever the schedule."""
        return KINDS[step % 4] == "sampled"

    def finish_step(self, record: StepRecord, verdict: Any, balance: Any) -> None:
        """All of it, or the heartbeat alone."""
        kind, began = KINDS[record.step % 4], self._now()
        if kind == "off":
            self._session.heartbeat.finish_step(
                step=record.step,
                stage_step=record.stage_step,
                tokens=record.tokens,
                duration_s=record.total_s,
                compute_s=record.busy_s,
                loss=self._numbers.loss if self._numbers is not None else float("nan"),
            )
        else:
            super().finish_step(record, verdict, balance)
        told = self._now()
        if self.cuda:
            import torch

            torch.cuda.synchronize()
        ended = self._now()
        mine, before = (0, self._began) if self.cuda else (1, self._began)
        others_s = max(0.0, (ended[2] - before[2]) - (ended[1] - before[1]))
        self.steps.append(Step(kind=kind, total_s=ended[mine] - before[mine], telling_s=told[mine] - began[mine], others_s=others_s))
        self._began = ended

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.perf_counter(), time.thread_time(), time.process_time()


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    """An OTLP/gRPC receiver in this process that takes everything; yields its endpoint, or nothing without the packages."""
    try:
        from concurrent.futures import ThreadPoolExecutor

        import grpc
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
    except ImportError:
        yield ""
        return

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's
            return metrics.ExportMetricsServiceResponse()

    class Logs(logs_grpc.LogsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's
            return logs.ExportLogsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    logs_grpc.add_LogsServiceServicer_to_server(Logs(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(grace=None)


def measure(place: Path, options: argparse.Namespace) -> list[Step]:
    """Train `options.steps` steps, the first eight of which warm up."""
    smoke = runpy.run_path(str(ROOT / "workloads" / "gpu_smoke.py"))
    options.rate = 3e-4
    document = smoke["_document"](corpus(place / "corpus", options.preset), options)
    with receiver() as endpoint, ExitStack() as stack:
        document["spec"]["telemetry"] = {"sampleSteps": options.sample, **({"otlpEndpoint": endpoint} if endpoint else {})}
        attempt = AttemptSpec(
            run=document,
            run_uid="bench-signals",
            stage_index=0,
            attempt=1,
            submission_id="bench-s00-a1",
            run_folder=str(place / "run"),
            num_workers=1,
            checkpoint_uri="",
            resume="none",
        )
        (place / "run" / "control").mkdir(parents=True)
        plan, facts = plan_of(attempt), plain_facts({}, device_type=options.device)
        session = stack.enter_context(open_session(attempt, plan, facts))
        learner, saver = Learner(plan, session.groups), NothingSaved()
        state = restore_or_begin(attempt, plan, learner, saver, session)
        loader = stack.enter_context(open_loader(attempt, plan, state, session, learner.config))
        observer = Switched(plan, session, learner)
        observer.start(cuda=options.device == "cuda")
        session.heartbeat.enter("first_step")
        session.began_s = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            run_steps(Parts(plan=plan, state=state, session=session, learner=learner, loader=loader, saver=saver, observer=observer))
    return observer.steps[8:]


def corpus(folder: Path, preset: str) -> str:
    """A little text and some pictures of noise: every part of the model is busy, and little time goes into making it."""
    import numpy as np

    from samite_workloads.data import prepare
    from samite_workloads.data.documents import Document, MemorySource, Picture
    from samite_workloads.data.stdlib import StandardLibrary

    side, chance = 56 if preset == "small" else 8, np.random.default_rng(0)
    pictures = [
        Document(parts=(Picture(pixels=chance.integers(0, 256, (side, side, 3), dtype=np.uint8)), f"noise {n % 10}"), origin=f"noise:{n}")
        for n in range(100)
    ]
    prepare(folder, [StandardLibrary(max_bytes=512 << 10), MemorySource(pictures, name="pictures")], vocab_size=1024)
    return str(folder)


def costs(steps: list[Step], sample: int) -> dict[str, list[float]]:
    """Shares of a step without signals, for each measured step: telling, the exporter's threads, and a sample spread over `sample` steps."""
    off_s = statistics.median(step.total_s for step in steps if step.kind == "off")
    silent_s = statistics.median(step.telling_s for step in steps if step.kind == "off")
    idle_s = statistics.median(step.others_s for step in steps if step.kind == "off")
    pairs = [(before, step) for before, step in itertools.pairwise(steps) if step.kind == "sampled"]
    return {
        "telling": [(step.telling_s - silent_s) / off_s for step in steps if step.kind == "told"],
        "exporter's threads": [(step.others_s - idle_s) / off_s for step in steps if step.kind != "off"],
        "sampling": [(step.total_s - before.total_s) / off_s / sample for before, step in pairs],
    }


def main() -> int:
    """Measure, and say what it costs."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="samite-bench-signals-") as place:
        steps = measure(Path(place), options)
    off = statistics.quantiles((step.total_s for step in steps if step.kind == "off"), n=4)
    sys.stdout.write(
        f"preset {options.preset} on {options.device}, {options.tokens} tokens a step; without signals {1e3 * off[1]:.1f} ms a step "
        f"({'wall clock' if options.device == 'cuda' else 'processor time'}, middle half {1e3 * off[0]:.1f} to {1e3 * off[2]:.1f}); {len(steps)} steps\n"
    )
    total = 0.0
    for name, shares in costs(steps, options.sample).items():
        low, middle, high = statistics.quantiles(shares, n=4)
        total += middle
        sys.stdout.write(
            f"{name:<20} {100 * middle:6.2f} % of a step (middle half {100 * low:.2f} to {100 * high:.2f}, {len(shares)} steps)\n"
        )
    sys.stdout.write(
        f"{'signals in all':<20} {100 * total:6.2f} %, limit {100 * options.limit:g} %, one step of {options.sample} sampled\n"
    )
    return int(total > options.limit)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cpu")
    parser.add_argument("--preset", choices=["small", "tiny"], help="default: tiny on cpu, small on cuda")
    parser.add_argument("--steps", type=int, default=160, help="steps in all; the first eight warm up")
    parser.add_argument("--sample", type=int, default=10, help="one step of so many is sampled in a run (telemetry.sampleSteps)")
    parser.add_argument("--context", type=int, help="default: 256 on cpu, 2048 on cuda")
    parser.add_argument("--tokens", type=int, help="tokens of one step; default: 1024 on cpu, 8192 on cuda")
    parser.add_argument("--micro", type=int, default=2, help="rows of one micro-batch")
    parser.add_argument("--limit", type=float, help="share of the step that signals may cost; default: 0.03 on cpu, 0.01 on cuda")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    options.preset = options.preset or ("small" if cuda else "tiny")
    options.context = options.context or (2048 if cuda else 256)
    options.tokens = options.tokens or (8192 if cuda else 1024)
    options.limit = options.limit if options.limit is not None else (0.01 if cuda else 0.03)
    return options


if __name__ == "__main__":
    sys.exit(main())
