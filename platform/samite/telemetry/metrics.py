"""Every metric that Samite records: name, instrument, unit, attributes. Looked up through `samite.telemetry.names`.

Naming rules (OpenTelemetry semantic conventions): no unit and no `total` in a name; `1` only for ratios, other numbers without a dimension
carry a brace unit; counters of countable things are plural; a present count ends in `.count`. Ranks, steps, attempts and checkpoint ids are
never metric attributes: they would make one series each (but for the five of `agent_metrics.py`). A test checks all of it.
"""

from samite.telemetry.agent_metrics import AGENT_METRICS
from samite.telemetry.instruments import Instrument, Metric

_COUNTER, _COUNT, _GAUGE, _HISTOGRAM = Instrument.COUNTER, Instrument.UP_DOWN_COUNTER, Instrument.GAUGE, Instrument.HISTOGRAM

STEP_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RECOVERY_BUCKETS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 3600.0)


def _metric(
    name: str, instrument: Instrument, unit: str, source: str, brief: str, *attributes: str, buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(name=name, instrument=instrument, unit=unit, source=source, brief=brief, attributes=attributes, buckets=buckets)


TRAINING_METRICS: tuple[Metric, ...] = (
    _metric(
        "samite.step.duration",
        _HISTOGRAM,
        "s",
        "rank 0",
        "Duration of an optimizer step, by part",
        "samite.step.part",
        buckets=STEP_BUCKETS_S,
    ),
    _metric("samite.step.number", _GAUGE, "{step}", "rank 0", "Optimizer steps finished over the whole run"),
    _metric("samite.step.straggler", _GAUGE, "1", "rank 0", "Slowest rank's compute time over the median of all ranks"),
    _metric("samite.tokens", _COUNTER, "{token}", "rank 0", "Tokens of all ranks", "samite.token.kind", "samite.modality"),
    _metric("samite.compute.utilization", _GAUGE, "1", "reserved", "Model FLOPs over the device's peak"),
    _metric("samite.loss", _GAUGE, "{loss}", "rank 0", "Mean cross entropy over supervised tokens, in nats", "samite.loss.kind"),
    _metric("samite.grad.norm", _GAUGE, "{norm}", "rank 0", "Gradient norm before clipping", "samite.param.group"),
    _metric("samite.grad.clipped", _GAUGE, "1", "rank 0", "Share of the last steps whose gradient was clipped"),
    _metric("samite.update.norm", _GAUGE, "1", "reserved", "Norm of the update over norm of the weights", "samite.param.group"),
    _metric("samite.optimizer.learning_rate", _GAUGE, "{rate}", "rank 0", "Learning rate of the step"),
    _metric(
        "samite.numeric.nonfinites",
        _COUNTER,
        "{value}",
        "any rank",
        "NaN or infinite values that were seen",
        "samite.tensor.kind",
        "samite.layer.block",
    ),
    _metric("samite.activation.amax", _GAUGE, "{value}", "rank 0", "Largest magnitude of a layer's output", "samite.layer.block"),
    _metric("samite.attention.logit.max", _GAUGE, "{value}", "reserved", "Largest attention logit", "samite.layer.block"),
    _metric("samite.data.wait.duration", _HISTOGRAM, "s", "rank 0", "Wait for the next batch", buckets=STEP_BUCKETS_S),
    _metric(
        "samite.data.samples.skipped",
        _COUNTER,
        "{sample}",
        "reserved",
        "Samples that the loader left out",
        "error.type",
        "samite.modality",
    ),
    _metric("samite.device.memory.peak", _GAUGE, "By", "any rank", "Peak device memory since the last sample", "samite.memory.kind"),
    _metric("samite.device.memory.usage", _GAUGE, "By", "any rank", "Device memory in use", "samite.memory.kind"),
    _metric("samite.device.memory.limit", _GAUGE, "By", "any rank", "Device memory that exists", "samite.memory.kind"),
    _metric("samite.device.memory.retries", _COUNTER, "{retry}", "any rank", "Allocations that had to be retried"),
    _metric("process.memory.usage", _COUNT, "By", "any rank", "Resident host memory of the process"),
)

DECAY_METRICS: tuple[Metric, ...] = (
    _metric(
        "samite.decay.underflow",
        _GAUGE,
        "1",
        "rank 0",
        "Share of causal decay products above 2^-24 that flushing or overflow of a factor lost; benign flushes do not count",
        "samite.layer.block",
        "samite.decay.kind",
    ),
    _metric("samite.decay.lossy_flushes", _COUNTER, "{product}", "rank 0", "Decay products of that kind", "samite.layer.block"),
    _metric(
        "samite.decay.benign_flush", _GAUGE, "1", "rank 0", "Share of state operands scaled below 2^-126; harmless", "samite.layer.block"
    ),
    _metric("samite.decay.exponent.min", _GAUGE, "{log2}", "rank 0", "Lowest summed log2 decay of a chunk", "samite.layer.block"),
    _metric(
        "samite.decay.tile.span",
        _GAUGE,
        "{nat}",
        "rank 0",
        "Largest summed log decay between a tile's row and its anchor",
        "samite.layer.block",
    ),
    _metric(
        "samite.decay.tile.margin", _GAUGE, "{nat}", "rank 0", "88.7228 minus that span: below 0 a factor overflows", "samite.layer.block"
    ),
    _metric("samite.decay.gate.saturated", _GAUGE, "1", "rank 0", "Share of gates within 0.05 of the lower bound", "samite.layer.block"),
    _metric("samite.decay.gate.open", _GAUGE, "1", "rank 0", "Share of gates that never forget (at least -1e-4)", "samite.layer.block"),
    _metric(
        "samite.decay.chunk.forgotten",
        _GAUGE,
        "1",
        "rank 0",
        "Share of chunk, head and channel triples that carry nothing across the chunk",
        "samite.layer.block",
        "samite.decay.threshold",
    ),
    _metric("samite.decay.head.memoryless", _GAUGE, "1", "rank 0", "Share of heads reduced to local attention", "samite.layer.block"),
    _metric("samite.decay.beta.saturated", _GAUGE, "1", "rank 0", "Share of beta below 1e-3 or above 0.999", "samite.layer.block"),
    _metric("samite.decay.state.rms", _GAUGE, "{value}", "rank 0", "Largest root mean square of a head's state", "samite.layer.block"),
    _metric("samite.decay.a_log.max", _GAUGE, "{value}", "rank 0", "Largest A_log; above 5 the gate is binary", "samite.layer.block"),
)

ROUTER_METRICS: tuple[Metric, ...] = (
    _metric("samite.moe.expert.load.cv", _GAUGE, "{cv}", "rank 0", "Standard deviation over mean of expert loads", "samite.layer.block"),
    _metric("samite.moe.expert.load.maxvio", _GAUGE, "1", "rank 0", "Largest load over mean load, minus 1", "samite.layer.block"),
    _metric(
        "samite.moe.expert.load.maxvio_floor",
        _GAUGE,
        "1",
        "rank 0",
        "What perfectly balanced sampling shows: sqrt(2 ln n / q) for n experts and q tokens per expert",
        "samite.layer.block",
    ),
    _metric("samite.moe.expert.idle.count", _COUNT, "{expert}", "rank 0", "Experts that got no token", "samite.layer.block"),
    _metric("samite.moe.router.entropy", _GAUGE, "{nat}", "rank 0", "Mean entropy of a token's normalised scores", "samite.layer.block"),
    _metric("samite.moe.router.logit.max", _GAUGE, "{value}", "rank 0", "Largest magnitude of a router logit", "samite.layer.block"),
)

CHECKPOINT_METRICS: tuple[Metric, ...] = (
    _metric(
        "samite.checkpoint.duration",
        _HISTOGRAM,
        "s",
        "checkpoint",
        "Duration of a phase of a checkpoint",
        "samite.checkpoint.phase",
        "samite.checkpoint.tier",
        buckets=STEP_BUCKETS_S,
    ),
    _metric("samite.checkpoint.io", _COUNTER, "By", "checkpoint", "Bytes committed", "samite.io.direction", "samite.checkpoint.tier"),
    _metric("samite.checkpoint.age", _GAUGE, "s", "supervisor", "Time since the newest commit, or since the start before the first one"),
    _metric(
        "samite.checkpoint.interval", _GAUGE, "s", "supervisor", "Time between commits that the spec asks for, at the present step time"
    ),
    _metric("samite.checkpoint.step", _GAUGE, "{step}", "supervisor", "Step of the newest checkpoint", "samite.checkpoint.state"),
    _metric("samite.checkpoint.storage.usage", _GAUGE, "By", "supervisor", "Bytes used on the file system that checkpoints are written to"),
    _metric(
        "samite.checkpoint.storage.limit", _GAUGE, "By", "supervisor", "Bytes that this file system has; object storage has no such limit"
    ),
    _metric("samite.checkpoint.verify.failures", _COUNTER, "{failure}", "supervisor", "Checkpoints that failed to verify"),
    _metric(
        "samite.storage.request.duration",
        _HISTOGRAM,
        "s",
        "reserved",
        "Duration of a storage request",
        "samite.storage.operation",
        "error.type",
        buckets=STEP_BUCKETS_S,
    ),
    _metric("samite.storage.retries", _COUNTER, "{retry}", "reserved", "Storage requests that were tried again", "error.type"),
)

RUN_METRICS: tuple[Metric, ...] = (
    _metric("samite.run.status", _COUNT, "{run}", "supervisor", "1 for the run's present phase, 0 for the others", "samite.run.state"),
    _metric(
        "samite.stage.status", _COUNT, "{stage}", "supervisor", "1 for the stage's present state, 0 for the others", "samite.stage.state"
    ),
    _metric("samite.run.remaining", _GAUGE, "s", "supervisor", "Time to the end of the run at this attempt's speed, once it is known"),
    _metric("samite.stage.progress", _GAUGE, "1", "supervisor", "Share of the stage's budget that is used"),
    _metric("samite.heartbeat.age", _GAUGE, "s", "supervisor", "Age of the oldest heartbeat", "samite.rank.group"),
    _metric("samite.time", _COUNTER, "s", "supervisor", "Wall clock by what it was spent on", "samite.time.state"),
    _metric("samite.ettr", _GAUGE, "1", "supervisor", "Effective training time over wall clock"),
    _metric("samite.ettr.objective", _GAUGE, "1", "operator", "What the spec asks of it (`slo.ettrPercent`)"),
    _metric(
        "samite.attempts",
        _COUNTER,
        "{attempt}",
        "supervisor",
        "Attempts that ended",
        "samite.attempt.outcome",
    ),
    _metric("samite.attempts.without_commit", _GAUGE, "{attempt}", "supervisor", "Attempts in a row without a new checkpoint"),
    _metric("samite.failures", _COUNTER, "{failure}", "supervisor", "Failures", "samite.failure.class", "error.type"),
    _metric(
        "samite.detection.duration",
        _HISTOGRAM,
        "s",
        "supervisor",
        "From the fault to the decision",
        "samite.failure.class",
        buckets=RECOVERY_BUCKETS_S,
    ),
    _metric(
        "samite.recovery.duration",
        _HISTOGRAM,
        "s",
        "supervisor",
        "Duration of a recovery, by phase",
        "samite.restart.level",
        "samite.recovery.phase",
        buckets=RECOVERY_BUCKETS_S,
    ),
    _metric("samite.restart.budget.usage", _GAUGE, "{restart}", "supervisor", "Restarts used in the window", "samite.failure.class"),
    _metric("samite.restart.budget.limit", _GAUGE, "{restart}", "supervisor", "Restarts allowed in the window", "samite.failure.class"),
    _metric("samite.node.spare.count", _COUNT, "{node}", "supervisor", "Nodes kept ready"),
    _metric("samite.node.excluded.count", _COUNT, "{node}", "supervisor", "Nodes that are not used"),
    _metric("samite.node.strike.count", _COUNT, "{strike}", "supervisor", "Strikes of a node that has any", "samite.node"),
    _metric("samite.queue.wait.age", _GAUGE, "s", "supervisor", "How long the run has been queued; 0 when it is not"),
    _metric(
        "samite.detector.status",
        _COUNT,
        "{detector}",
        "supervisor",
        "1 for a detector's present state, 0 for the others",
        "samite.detector.name",
        "samite.detector.state",
    ),
    _metric("samite.events", _COUNTER, "{event}", "all", "Events by name", "samite.event.name"),
    _metric("samite.telemetry.dropped", _COUNTER, "{item}", "all", "Telemetry that could not be delivered", "samite.telemetry.signal"),
)

OPERATOR_METRICS: tuple[Metric, ...] = (
    _metric(
        "samite.operator.reconcile.duration",
        _HISTOGRAM,
        "s",
        "operator",
        "From a change, or from the moment a turn was due, to the end of the turn that took it in",
        buckets=REQUEST_BUCKETS_S,
    ),
    _metric("samite.operator.turn.duration", _HISTOGRAM, "s", "operator", "Duration of a turn alone", buckets=REQUEST_BUCKETS_S),
    _metric("samite.operator.turns", _COUNTER, "{turn}", "operator", "Turns of all runs", "samite.turn.outcome"),
    _metric(
        "samite.operator.requests",
        _COUNTER,
        "{request}",
        "operator",
        "Requests to the API server, without those of the watches",
        "samite.request.verb",
        "samite.request.resource",
        "samite.request.outcome",
    ),
    _metric(
        "samite.operator.request.duration", _HISTOGRAM, "s", "operator", "Their duration", "samite.request.verb", buckets=REQUEST_BUCKETS_S
    ),
    _metric("samite.operator.run.count", _COUNT, "{run}", "operator", "Runs that are looked after"),
    _metric("samite.operator.change.age", _GAUGE, "s", "operator", "Age of the oldest change that no turn has taken in"),
    _metric("samite.operator.list.age", _GAUGE, "s", "operator", "Time since the last full listing that succeeded"),
    _metric("samite.operator.watch.stalled", _GAUGE, "{watch}", "operator", "Watches that did not tell what a listing showed"),
    _metric("samite.operator.leader", _GAUGE, "1", "operator", "1 while this process holds the operator's Lease"),
    _metric(
        "samite.operator.clearings.expired", _COUNTER, "{run}", "operator", "Deleted runs that were let go before all was cleared away"
    ),
    _metric("samite.operator.orphans", _COUNTER, "{object}", "operator", "Objects that were deleted because their run is gone"),
)

ALL_METRICS: tuple[Metric, ...] = (
    *TRAINING_METRICS,
    *DECAY_METRICS,
    *ROUTER_METRICS,
    *CHECKPOINT_METRICS,
    *RUN_METRICS,
    *OPERATOR_METRICS,
    *AGENT_METRICS,
)
