"""The spans that only the engine can know: an attempt from its cluster to its end. Made from two memories in a row; used by both engines."""

from samite.lifecycle.memory import AttemptMemory, Memory
from samite.telemetry.traces import SpanRecord, trace_parent_of


class AttemptSpans:
    """Of one run. Call `take` with the memory of each turn."""

    def __init__(self, run_uid: str) -> None:
        self._run_uid = run_uid
        self._before: Memory | None = None
        self._previous = ""
        """Submission id of the attempt that ended last."""

    def take(self, memory: Memory) -> list[SpanRecord]:
        """The spans of the attempt that ended with this turn; empty while none did."""
        before, self._before = self._before, memory
        if before is None or before.live is None:
            return []
        live = before.live
        if memory.live is not None and memory.live.submission_id == live.submission_id:
            return []
        spans = self._of_attempt(before, live, memory)
        self._previous = live.submission_id
        return spans

    def _of_attempt(self, before: Memory, live: AttemptMemory, memory: Memory) -> list[SpanRecord]:
        parent = trace_parent_of(self._run_uid, live.submission_id)
        cluster, failure = before.cluster, memory.last_failure
        spans = []
        began_s = live.since_s
        # A cluster that was there before the last attempt ended was not made for this one.
        if cluster is not None and before.attempt_ended_at_s <= cluster.since_s < live.since_s:
            began_s = cluster.since_s
            spans.append(SpanRecord(name="provision", trace_parent=parent, start_unix_s=cluster.since_s, end_unix_s=live.since_s))
        if live.first_step_at_s is not None:
            spans.append(SpanRecord(name="start", trace_parent=parent, start_unix_s=live.since_s, end_unix_s=live.first_step_at_s))
        failed = failure is not None and failure.submission_id == live.submission_id and before.last_failure != failure
        root = SpanRecord(
            name="attempt",
            trace_parent=parent,
            start_unix_s=began_s,
            end_unix_s=memory.now_s,
            attributes={
                "samite.attempt.number": live.attempt,
                "samite.attempt.submission": live.submission_id,
                "samite.stage.index": live.stage_index,
                "samite.step.last": live.last_step,
            },
            is_root=True,
            link=trace_parent_of(self._run_uid, self._previous) if self._previous else "",
            failed=failure.error_type if failed and failure is not None else "",
        )
        return [root, *spans]
