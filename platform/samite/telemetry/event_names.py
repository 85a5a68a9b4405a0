"""Every event that Samite emits, with its usual severity and the attributes that readers count on.

Looked up through `samite.telemetry.names`.

An event may carry further registered attributes; the ones named here are the contract. Metric names, event names and attributes are one
family: a curve's event has the curve's name where there is one (`samite.decay.underflow`).
"""

from samite.telemetry.instruments import Event, Severity

_INFO, _WARN, _ERROR = Severity.INFO, Severity.WARN, Severity.ERROR


def _event(name: str, severity: Severity, brief: str, *attributes: str, reserved: bool = False) -> Event:
    keys = tuple(f"samite.{attribute}" for attribute in attributes)
    return Event(name=name, severity=severity, brief=brief, attributes=keys, reserved=reserved)


ALL_EVENTS: tuple[Event, ...] = (
    _event("samite.run.submitted", _INFO, "A person or a program submitted the run", "actor"),
    _event("samite.run.phase.changed", _INFO, "The run went from one phase to another", "phase.from", "phase.to", "reason"),
    _event("samite.run.held", _ERROR, "The run stopped trying and waits for a person", "reason"),
    _event("samite.run.suspended", _INFO, "Someone suspended the run", "actor"),
    _event("samite.run.resumed", _INFO, "Someone let the run go on", "actor"),
    _event("samite.run.cancelled", _INFO, "Someone cancelled the run", "actor"),
    _event("samite.stage.started", _INFO, "A stage began", "stage.name", "stage.context_length", "stage.layout"),
    _event("samite.stage.finished", _INFO, "A stage used up its budget and passed its gate", "stage.name", "tokens.trained"),
    _event("samite.stage.gate.evaluated", _INFO, "A gate's check was evaluated", "gate.check", "value", "threshold", "gate.verdict"),
    _event(
        "samite.stage.handover.committed",
        _INFO,
        "A stage's hand-over lies in storage",
        "checkpoint.id",
        "handover.hash",
        "handover.carried",
        "handover.reset",
    ),
    _event("samite.attempt.started", _INFO, "An attempt was submitted", "attempt.number", "attempt.submission", "nodes"),
    _event("samite.attempt.ended", _INFO, "An attempt ended", "attempt.number", "attempt.outcome", "step.last", "step.recomputed"),
    _event("samite.training.started", _INFO, "The first step of an attempt or incarnation is done", "step.index", "step.resumed"),
    _event("samite.failure.detected", _ERROR, "Something failed", "failure.class", "fault.time", "evidence"),
    _event("samite.hang.suspected", _WARN, "A heartbeat is older than its limit", "heartbeat.seconds", "threshold", "ranks"),
    _event("samite.hang.confirmed", _ERROR, "A second fact confirms the hang", "heartbeat.seconds", "evidence", "ranks"),
    _event(
        "samite.restart.decided",
        _WARN,
        "The run will be restarted",
        "restart.level",
        "failure.class",
        "restart.backoff",
        "restart.budget_left",
    ),
    _event("samite.restart.withheld", _WARN, "A restart waits for a second fact", "evidence.missing"),
    _event(
        "samite.recovery.finished",
        _INFO,
        "The first new step after a failure is done",
        "restart.level",
        "failure.class",
        "duration",
        "duration.detect",
        "duration.restart",
        "duration.load",
        "duration.first_step",
        "step.recomputed",
    ),
    _event("samite.node.suspected", _WARN, "Weak evidence against a node", "node", "node.strikes"),
    _event("samite.node.lost", _WARN, "A node is gone", "node", "evidence"),
    _event("samite.node.replaced", _INFO, "A new node took the place of a lost one", "node", reserved=True),
    _event("samite.node.quarantined", _WARN, "A node is not used any more", "node", "node.expiry", "reason"),
    _event("samite.node.released", _INFO, "A node may be used again", "node", "reason"),
    _event(
        "samite.checkpoint.committed",
        _INFO,
        "A checkpoint exists now",
        "checkpoint.id",
        "step.index",
        "checkpoint.bytes",
        "checkpoint.shards",
        "duration",
    ),
    _event(
        "samite.checkpoint.verified",
        _INFO,
        "A checkpoint's bytes are what its manifest says",
        "checkpoint.id",
        "step.index",
        "checkpoint.level",
    ),
    _event("samite.checkpoint.restored", _INFO, "Training state was read from a checkpoint", "checkpoint.id", "step.index", "duration"),
    _event("samite.checkpoint.pruned", _INFO, "A checkpoint was deleted by retention", "checkpoint.id", "step.index"),
    _event(
        "samite.checkpoint.quarantined",
        _ERROR,
        "A damaged checkpoint was set aside",
        "checkpoint.id",
        "step.index",
        "reason",
    ),
    _event(
        "samite.checkpoint.verify.failed",
        _ERROR,
        "A checkpoint's bytes differ from its manifest",
        "checkpoint.id",
        "reason",
    ),
    _event("samite.checkpoint.save.failed", _ERROR, "A checkpoint could not be written; training went on", "step.index", "reason"),
    _event(
        "samite.numeric.nonfinite",
        _ERROR,
        "A NaN or infinite value; the optimizer step was not taken",
        "tensor.kind",
        "tensor.name",
        "layer.block",
        "step.index",
        "data.window",
    ),
    _event("samite.numeric.window.skipped", _WARN, "A data window is left out after a roll-back", "data.window", "step.index"),
    _event(
        "samite.grad.norm.spike",
        _WARN,
        "The gradient norm left its band",
        "value",
        "median",
        "deviation",
        "layer.block",
        "step.index",
        "step.first",
        "data.window",
    ),
    _event(
        "samite.loss.spike",
        _WARN,
        "The loss left its band",
        "value",
        "median",
        "deviation",
        "layer.block",
        "step.index",
        "step.first",
        "data.window",
    ),
    _event(
        "samite.decay.underflow",
        _WARN,
        "Information is lost in decay products, or the gates are on the way to it",
        "decay.cause",
        "layer.block",
        "decay.share",
        "decay.exponent",
        "decay.chunk_length",
        "stage.context_length",
        "step.index",
    ),
    _event(
        "samite.moe.expert.collapse",
        _WARN,
        "Experts get no tokens, or a few get most",
        "layer.block",
        "experts.idle",
        "experts.cv",
        "step.index",
    ),
    _event("samite.memory.pressure", _WARN, "Memory is nearly used up", "rank", "memory.bytes", "memory.limit_bytes"),
    _event(
        "samite.straggler.detected",
        _WARN,
        "One rank computes slower than the median for many steps",
        "rank",
        "value",
        "threshold",
        "window",
    ),
    _event("samite.preemption.notice", _WARN, "A node will be taken away", "node", "ranks"),
    _event("samite.storage.stall", _WARN, "A storage operation takes too long", "storage.operation", "duration", "retries"),
    _event("samite.detector.degraded", _WARN, "A detector does not work", "detector.name", "reason", reserved=True),
    _event("samite.budget.exhausted", _ERROR, "No restarts are left for a failure class", "failure.class", "count", "limit"),
    _event(
        "samite.bundle.stored", _INFO, "A diagnostics bundle was written", "bundle.uri", "bundle.parts", "bundle.missing", reserved=True
    ),
    _event(
        "samite.operator.permission.missing", _WARN, "The operator may not do what it has to", "request.verb", "request.resource", "message"
    ),
    _event("samite.operator.spec.refused", _ERROR, "A spec got past the API server that makes no sense", "message"),
    _event("samite.operator.clearing.started", _INFO, "A deleted run is being cleared away"),
    _event("samite.operator.clearing.expired", _WARN, "A deleted run was let go before all of it was cleared away", "duration", "reason"),
    _event("samite.operator.orphan.deleted", _INFO, "An object was deleted because its run is gone", "object.kind", "object.name"),
    _event("samite.chaos.injected", _WARN, "Someone injected a fault on purpose", "chaos.kind", "actor"),
)
