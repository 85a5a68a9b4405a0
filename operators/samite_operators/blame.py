"""What is held against the machines of the cluster, shared by all runs: NodeBlame objects, one for each node.

A run judges its own nodes (`samite.lifecycle.blame`) and remembers them by its pods. What is new in a run's memory after a turn is added here, by the
same rules, against the machine that the pod ran on. Every run's next cluster then leaves out what is quarantined here or excluded by a person.
Deleting a NodeBlame trusts its node again; an entry that says nothing any more is deleted by the sweep.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from samite.engines.kuberay.api import NODE_BLAME, ApiError, ConflictApiError, Document, GoneApiError, KubernetesApi
from samite.lifecycle import blame as rules
from samite.lifecycle.doubts import BlameMemory
from samite.lifecycle.plan import NodePolicy
from samite.spec.node_blame import MAX_EVIDENCE
from samite_operators.status import timestamp

_logger = logging.getLogger(__name__)
FRESH_S = 15.0
_TRIES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One new thing against a machine."""

    node: str
    weak: rules.Weak | None
    """None: strong enough to exclude at once."""
    fact: str
    until_s: float | None
    """The run excludes it until then."""


def new_judgements(before: Iterable[BlameMemory], after: Iterable[BlameMemory], host_of: Callable[[str], str]) -> Iterator[Judgement]:
    """What a run has learnt against its nodes in a turn. Nodes whose machine is not known are left out."""
    old = {entry.node: entry for entry in before}
    for entry in after:
        known = old.get(entry.node, BlameMemory(node=entry.node))
        host = host_of(entry.node)
        if entry == known or not host:
            continue
        facts = [fact for fact in entry.seen if fact not in known.seen]
        for fact in facts:
            yield Judgement(node=host, weak=_weak(entry.reason), fact=fact, until_s=None)
        if entry.excluded_until_s is not None and entry.excluded_until_s != known.excluded_until_s:
            yield Judgement(node=host, weak=None, fact=entry.reason, until_s=entry.excluded_until_s)


def released(before: Iterable[BlameMemory], after: Iterable[BlameMemory], host_of: Callable[[str], str], *, now_s: float) -> list[str]:
    """Machines that a person trusts again: excluded before, not even listed after."""
    left = {entry.node for entry in after}
    return [
        host_of(entry.node)
        for entry in before
        if entry.node not in left and (entry.excluded_until_s or 0.0) > now_s and host_of(entry.node)
    ]


def judged(status: Mapping[str, Any], judgement: Judgement, *, policy: NodePolicy, run: Mapping[str, Any], now_s: float) -> Document:
    """The NodeBlame status after one more judgement. `now_s`: since the epoch."""
    entry = _entry(status, judgement.node)
    if judgement.weak is None:
        entry = replace(entry, excluded_until_s=max(judgement.until_s or 0.0, entry.excluded_until_s or 0.0), reason=judgement.fact)
        counted = 0.0
    else:
        # The cap on excluded nodes was applied by the run that judged; here the machine's own record alone counts.
        verdict = rules.strike(
            (entry,), node=judgement.node, weak=judgement.weak, fact=judgement.fact, pool=10_000, policy=policy, now_s=now_s
        )
        entry, counted = verdict.blame[0], rules.STRIKES[judgement.weak]
    metadata = run["metadata"]
    evidence = {
        "kind": str(judgement.weak or "excluded"),
        "strikes": counted,
        "fact": judgement.fact[:512],
        "at": timestamp(now_s),
        "namespace": metadata["namespace"],
        "run": metadata["name"],
    }
    return _document(entry, [*(status.get("evidence") or ()), evidence][-MAX_EVIDENCE:], policy=policy, now_s=now_s)


class BlameLedger:
    """The NodeBlame objects of the cluster; safe to use from many threads."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        host_of: Callable[[str, str], str] = lambda _namespace, _pod: "",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host_of`: (namespace, pod) to the machine it runs on or ran on, empty if unknown. `now`: seconds since the epoch."""
        self._api, self._host_of, self._now, self._clock = api, host_of, now, clock
        self._lock = threading.Lock()
        self._known: tuple[Document, ...] = ()
        self._read_at_s = -1e9

    def excluded(self) -> frozenset[str]:
        """Machines that no run should start on now. The last answer stands while the API server is silent."""
        now_s = self._now()
        return frozenset(item["metadata"]["name"] for item in self._objects() if is_excluded(item, now_s=now_s))

    def note(self, run: Document, before: Iterable[BlameMemory], after: Iterable[BlameMemory], *, policy: NodePolicy) -> None:
        """Add what a turn of `run` learnt. Never raises: blame is advice, a turn must not fail for it."""
        before, after = tuple(before), tuple(after)
        if before == after:
            return
        namespace = run["metadata"]["namespace"]

        def host(pod: str) -> str:
            return self._host_of(namespace, pod)

        try:
            for judgement in new_judgements(before, after, host):
                self._add(run, judgement, policy)
            for node in released(before, after, host, now_s=self._now()):
                self._api.delete(NODE_BLAME, "", node)
        except ApiError as error:
            _logger.warning("blame of run %s was not written: %s", run["metadata"]["name"], error)
        self._read_at_s = -1e9

    def sweep(self) -> int:
        """Delete entries that say nothing any more, and end quarantines that are over. Returns how many were deleted."""
        gone, now_s, policy = 0, self._now(), NodePolicy()
        for item in self._api.list(NODE_BLAME).items:
            name, status = item["metadata"]["name"], item.get("status") or {}
            entry = _entry(status, name)
            over = (entry.excluded_until_s or 0.0) <= now_s
            if (item.get("spec") or {}).get("exclude"):
                continue
            if over and rules.strikes_now(entry, policy, now_s) < 0.05:
                self._api.delete(NODE_BLAME, "", name, uid=item["metadata"]["uid"])
                gone += 1
            elif over and status.get("state") == "Quarantined":
                entry = replace(entry, excluded_until_s=None)
                self._write(item, _document(entry, status.get("evidence") or [], policy=policy, now_s=now_s))
        return gone

    def _objects(self) -> tuple[Document, ...]:
        with self._lock:
            if self._clock() - self._read_at_s > FRESH_S:
                self._read_at_s = self._clock()
                try:
                    self._known = tuple(self._api.list(NODE_BLAME, cached=True).items)
                except ApiError as error:
                    _logger.warning("NodeBlame objects were not read: %s", error)
            return self._known

    def _add(self, run: Document, judgement: Judgement, policy: NodePolicy) -> None:
        for _ in range(_TRIES):
            item = self._found(judgement.node)
            status = item.get("status") or {}
            if any(known.get("fact") == judgement.fact[:512] for known in status.get("evidence") or ()):
                return
            try:
                self._write(item, judged(status, judgement, policy=policy, run=run, now_s=self._now()))
            except (ConflictApiError, GoneApiError):
                continue
            return

    def _found(self, node: str) -> Document:
        try:
            return self._api.get(NODE_BLAME, "", node)
        except GoneApiError:
            document = {"apiVersion": NODE_BLAME.api_version, "kind": NODE_BLAME.kind, "metadata": {"name": node}, "spec": {}}
            try:
                return self._api.create(NODE_BLAME, "", document)
            except ConflictApiError:
                return self._api.get(NODE_BLAME, "", node)

    def _write(self, item: Document, status: Document) -> None:
        patch = {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}, "status": status}
        self._api.patch(NODE_BLAME, "", item["metadata"]["name"], patch, subresource="status")


def is_excluded(item: Mapping[str, Any], *, now_s: float) -> bool:
    """Whether a NodeBlame keeps runs off its node."""
    if (item.get("spec") or {}).get("exclude"):
        return True
    return (_seconds((item.get("status") or {}).get("quarantinedUntil")) or 0.0) > now_s


def _entry(status: Mapping[str, Any], node: str) -> BlameMemory:
    return BlameMemory(
        node=node,
        strikes=float(status.get("strikes") or 0.0),
        updated_s=_seconds(status.get("updatedAt")) or 0.0,
        excluded_until_s=_seconds(status.get("quarantinedUntil")),
        reason=str(status.get("reason") or ""),
        seen=tuple(str(item.get("fact")) for item in status.get("evidence") or ()),
        last_flap_s=_seconds(status.get("lastFlapAt")),
    )


def _document(entry: BlameMemory, evidence: list[Document], *, policy: NodePolicy, now_s: float) -> Document:
    strikes = rules.strikes_now(entry, policy, now_s)
    quarantined = (entry.excluded_until_s or 0.0) > now_s
    return {
        "state": "Quarantined" if quarantined else "Suspect" if strikes >= 0.05 else "Trusted",
        "strikes": round(strikes, 3),
        "halfLifeSeconds": policy.half_life_s,
        "updatedAt": timestamp(now_s),
        "quarantinedUntil": timestamp(entry.excluded_until_s) if quarantined and entry.excluded_until_s is not None else None,
        "lastFlapAt": timestamp(entry.last_flap_s) if entry.last_flap_s is not None else None,
        "reason": entry.reason[:1024],
        "evidence": evidence,
    }


def _seconds(text: Any) -> float | None:
    return datetime.fromisoformat(str(text)).timestamp() if text else None


def _weak(reason: str) -> rules.Weak:
    found = [weak for weak in rules.Weak if reason.startswith(f"{weak}:")]
    return found[0] if found else rules.Weak.FIRST_TO_FAIL
