"""One turn of one run: look, decide, store memory and status in one patch, act. Testable without kopf and without a cluster.

    newest object ─ finalizer ─ plan ─ observe ─ decide ─ (destructive? look again at the server itself, decide again)
                                                   │
                     status patch with resourceVersion ─ events ─ actions

Nothing is kept here that a restarted operator would miss: the memory lies in the object's status, everything else is looked at again. A turn that
ends anywhere, by an error or by the end of the process, is taken up by the next one.
"""

import logging
from collections.abc import Mapping
from typing import Any

from samite.engines.kuberay.api import TRAINING_RUN, ConflictApiError, Document, GoneApiError, RetryableApiError
from samite.engines.kuberay.names import FINALIZER
from samite.engines.kuberay.stored_memory import unpack
from samite.engines.kuberay.wishes import answered
from samite.errors import SamiteError, SpecError
from samite.lifecycle import TERMINAL, Decision, Memory, decide
from samite_operators.clearing import Clearing, take_on
from samite_operators.plans import Planned, is_ours, plan_of
from samite_operators.refusing import REFUSALS, refuse
from samite_operators.run_state import Next, RunState
from samite_operators.services import Engine, Services
from samite_operators.status import Note, StatusWriter, wanted_status, with_note

_logger = logging.getLogger(__name__)
SOON_S = 0.2
HURRY_S, HURRY_FOR_S = 1.0, 300.0
"""A recovery is looked at this often, for so long: somebody waits for its next step, and what is read comes from the watches."""


class Turns:
    """Takes turns. One at a time for each run; the keeper sees to that."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._states: dict[tuple[str, str], RunState] = {}

    def take(self, namespace: str, name: str) -> Next:
        """One turn. Never raises: what goes wrong is in the outcome, the log and, where possible, the run's status."""
        services, key = self._services, (namespace, name)
        with services.instruments.timed("samite.operator.turn.duration"):
            try:
                following = self._turn(namespace, name)
                if key in self._states:
                    self._states[key].failures = 0
            except (ConflictApiError, GoneApiError) as error:
                _logger.info("turn of %s/%s dropped: %s", namespace, name, error)
                following = self._look_anew(namespace, name)
            except RetryableApiError as error:
                _logger.warning("turn of %s/%s: %s", namespace, name, error)
                following = Next(in_s=min(max(error.retry_after_s, services.settings.turn_s), 30.0), outcome="unreachable")
            except REFUSALS as error:
                _logger.warning("turn of %s/%s: %s", namespace, name, error)
                following = Next(in_s=30.0, outcome="refused")
            except Exception:
                # Whatever is wrong with one run must not end the operator: it is retried, ever more slowly, and counted.
                _logger.exception("turn of %s/%s", namespace, name)
                following = Next(in_s=self._back_off_s(key), outcome="error")
        services.instruments.record("samite.operator.turns", 1, {"samite.turn.outcome": following.outcome})
        return following

    def forget(self, namespace: str, name: str, uid: str = "") -> None:
        """The run is gone; with `uid`, only if it is that one."""
        state = self._states.get((namespace, name))
        if state is not None and uid in ("", state.uid):
            del self._states[namespace, name]
            self._services.engine(namespace).forget(state.uid)
            self._services.teller.forget(state.uid)
            self._services.stores.forget(state.uid)

    def _turn(self, namespace: str, name: str) -> Next:
        services = self._services
        run = services.newest(namespace, name)
        if run is None:
            self.forget(namespace, name)
            return Next(in_s=None)
        state = self._state(run)
        if not is_ours(run):
            return Next(in_s=services.settings.idle_s)
        if not services.may_act():
            return Next(in_s=services.settings.turn_s)
        if run["metadata"].get("deletionTimestamp"):
            return self._clear(run, state)
        if services.settings.maintenance:
            return self._look_only(run, state)
        run = take_on(services, run)
        try:
            planned = self._planned(run, state)
            memory = unpack((run.get("status") or {}).get("memory", ""))
        except (SpecError, ValueError) as error:
            return refuse(services, run, state, error)
        return self._ordinary(run, state, planned, memory)

    def _ordinary(self, run: Document, state: RunState, planned: Planned, memory: Memory) -> Next:
        services = self._services
        before = run.get("status") or {}
        document = planned.document(run)
        try:
            chosen = services.runtimes.choose(planned.run, memory, before.get("runtime") or {})
        except SpecError as error:
            return refuse(services, run, state, error, reason="RuntimeRefused")
        engine = services.engine(run["metadata"]["namespace"])
        for pod in services.cache.take_ended(run["metadata"]["namespace"], run["metadata"]["name"]):
            engine.note_pod(pod)
        decision = self._decide(engine, document, planned, memory)
        stored = self._store(run, state, decision, memory=memory, runtime=chosen.pin, planned=planned)
        self._tell(stored, state, decision, planned)
        if not services.may_act():
            return Next(in_s=services.settings.turn_s, outcome="conflict")
        services.ledger.note(stored, memory.blame, decision.memory.blame, policy=planned.plan.nodes)
        self._act(engine, document, planned, decision, chosen.runtime, state)
        self._remove_answered(stored, decision.memory)
        return Next(in_s=self._due_in_s(planned, decision, stored))

    def _decide(self, engine: Engine, document: Document, planned: Planned, memory: Memory) -> Decision:
        def look() -> Decision:
            return decide(planned.plan, engine.observe(document, planned.plan, memory), memory, engine.now_s())

        decision = look()
        if decision.destructive:
            # Nothing is destroyed on the word of a watch, which may be late.
            with self._services.api.direct():
                decision = look()
        return decision

    def _store(
        self, run: Document, state: RunState, decision: Decision, *, memory: Memory, runtime: Document, planned: Planned
    ) -> Document:
        services = self._services
        before = run.get("status") or {}
        wanted = wanted_status(
            decision.status,
            before=before,
            run=planned.document(run),
            now_s=services.engine(run["metadata"]["namespace"]).now_s(),
            committed_at_s=decision.memory.newest_commit_at_s,
            notes=self._notes(run, state),
            extra={"runtime": runtime},
        )
        now_s = services.clock()
        due = state.writer.due(
            before, wanted, memory=(memory, decision.memory), actions=decision.actions, settled=decision.settled, now_s=now_s
        )
        if not due and not decision.events:
            return run
        return state.writer.write(services.api, run, wanted, decision.memory, actions=decision.actions, now_s=now_s)

    def _notes(self, run: Document, state: RunState) -> tuple[Note, ...]:
        denials = self._services.metered.denials(run["metadata"]["namespace"])
        rights = tuple(denial.right for denial in denials)
        for denial in denials:
            if denial.right not in state.denied:
                self._post(
                    run,
                    "samite.operator.permission.missing",
                    {"request_verb": denial.verb, "request_resource": denial.resource, "message": denial.message},
                )
        state.denied = rights
        problems = (*state.problems, *state.writer.complaints)
        may = f"the operator may not {', '.join(rights)}; grant it, or install the chart's role for this namespace"
        return (
            Note(type="Permitted", holds=not rights, reason="Forbidden" if rights else "Granted", message=may if rights else ""),
            Note(
                type="Applied",
                holds=not problems,
                reason="Refused" if problems else "Done",
                message="; ".join(problems),
            ),
            Note(type="Acting", holds=True, reason="Leading"),
        )

    def _act(self, engine: Engine, document: Document, planned: Planned, decision: Decision, runtime: Any, state: RunState) -> None:
        if not decision.actions:
            return
        problems = engine.apply(document, planned.plan, decision.actions, runtime=runtime)
        for problem in problems:
            _logger.warning("run %s: %s", document["metadata"]["name"], problem.message)
        state.problems = tuple(problem.message for problem in problems if problem.permanent)

    def _tell(self, run: Document, state: RunState, decision: Decision, planned: Planned) -> None:
        services = self._services
        for event in decision.events:
            self._post(run, event.name, event.attributes)
        for name, attributes in services.engine(run["metadata"]["namespace"]).take_events(state.uid):
            self._post(run, name, attributes)
        due = services.clock() - state.signalled_at_s >= services.settings.progress_s
        services.teller.signals(run, state.status, decision.status, due=due, plan=planned.plan, memory=decision.memory)
        state.status = decision.status
        if due:
            state.signalled_at_s = services.clock()

    def _post(self, run: Document, name: str, attributes: Mapping[str, Any]) -> None:
        services = self._services
        services.teller.event(run, name, attributes, now_s=services.engine(run["metadata"]["namespace"]).now_s())

    def _look_only(self, run: Document, state: RunState) -> Next:
        """Maintenance: the status says what would be done; no memory is stored, so that the work goes on where it was."""
        services = self._services
        try:
            planned = self._planned(run, state)
            memory = unpack((run.get("status") or {}).get("memory", ""))
        except (SpecError, ValueError) as error:
            return refuse(services, run, state, error)
        engine = services.engine(run["metadata"]["namespace"])
        decision = self._decide(engine, planned.document(run), planned, memory)
        would = ", ".join(dict.fromkeys(type(action).__name__ for action in decision.actions)) or "nothing"
        note = Note(type="Acting", holds=False, reason="Maintenance", message=f"the operator looks and does nothing; it would do: {would}")
        before = run.get("status") or {}
        wanted = {**before, "conditions": with_note(note, before, run=run, now_s=engine.now_s())}
        if wanted != before:
            state.writer.write(services.api, run, wanted, None, now_s=services.clock())
        return Next(in_s=services.settings.turn_s)

    def _clear(self, run: Document, state: RunState) -> Next:
        services = self._services
        if FINALIZER not in (run["metadata"].get("finalizers") or ()):
            return Next(in_s=services.settings.idle_s)
        if services.settings.maintenance or not services.may_act():
            return Next(in_s=services.settings.turn_s)
        try:
            planned: Planned | None = self._planned(run, state)
            memory = unpack((run.get("status") or {}).get("memory", ""))
        except (SpecError, ValueError):
            planned, memory = None, Memory()
        return Next(in_s=state.clearing.step(services, run, planned, memory, state.writer))

    def _remove_answered(self, run: Document, memory: Memory) -> None:
        """Requests that are answered leave the annotations. A person who writes at this moment wins: it is tried again."""
        gone = answered(run, memory)
        if gone:
            metadata = run["metadata"]
            patch = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": dict.fromkeys(gone)}}
            self._services.api.patch(TRAINING_RUN, metadata["namespace"], metadata["name"], patch)

    def _due_in_s(self, planned: Planned, decision: Decision, run: Document) -> float:
        settings = self._services.settings
        recovery = decision.memory.recovery
        if not decision.settled:
            young = recovery is not None and decision.memory.now_s - recovery.decided_at_s < HURRY_FOR_S
            return min(settings.turn_s, HURRY_S) if young else settings.turn_s
        kept_s = planned.run.spec.retention.ttl_seconds_after_finished
        if kept_s is None or decision.memory.phase not in TERMINAL:
            return settings.idle_s
        left_s = decision.memory.phase_since_s + kept_s - decision.memory.now_s
        if left_s <= 0.0:
            metadata = run["metadata"]
            self._services.api.delete(TRAINING_RUN, metadata["namespace"], metadata["name"], uid=metadata["uid"])
        return min(settings.idle_s, max(left_s, settings.turn_s))

    def _planned(self, run: Document, state: RunState) -> Planned:
        if state.planned is None or state.planned.generation != int(run["metadata"].get("generation", 0)):
            state.planned = plan_of(run)
        return state.planned

    def _state(self, run: Document) -> RunState:
        metadata = run["metadata"]
        key = metadata["namespace"], metadata["name"]
        state = self._states.get(key)
        if state is not None and state.uid != metadata["uid"]:
            self.forget(*key)
            state = None
        if state is None:
            settings = self._services.settings
            state = self._states[key] = RunState(
                uid=metadata["uid"],
                writer=StatusWriter(progress_s=settings.progress_s),
                clearing=Clearing(cap_s=settings.finalizer_s, clock=self._services.clock),
            )
        return state

    def _look_anew(self, namespace: str, name: str) -> Next:
        """Somebody else wrote, or deleted: read what is there now."""
        services = self._services
        try:
            with services.api.direct():
                services.api.get(TRAINING_RUN, namespace, name)
        except GoneApiError:
            known = services.newest(namespace, name)
            if known is not None:
                services.cache.remove(TRAINING_RUN, known)
        except SamiteError:
            return Next(in_s=services.settings.turn_s, outcome="conflict")
        return Next(in_s=SOON_S, outcome="conflict")

    def _back_off_s(self, key: tuple[str, str]) -> float:
        state = self._states.get(key)
        if state is None:
            return 5.0
        state.failures += 1
        return float(min(5.0 * 2.0 ** (state.failures - 1), 120.0))
