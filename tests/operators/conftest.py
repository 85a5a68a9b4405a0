"""An operator without a cluster: the fake API server, the lifecycle's simulated world behind the seam of an engine, and a clock that only tests move."""

import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


from samite.checkpoint.store.memory import MemoryStore
from samite.engines.kuberay.api import NODE, RAY_CLUSTER, TRAINING_RUN, ApiError, Document, Kind
from samite.engines.kuberay.fake_api import FakeApi
from samite.engines.kuberay.wishes import wishes_of
from samite.lifecycle import Action, Memory, Observed, ReleaseCluster, RunPlan, StartCluster, StopCluster
from samite.lifecycle.simulation.world import World
from samite_operators.blame import BlameLedger
from samite_operators.cache import CachedApi, ObjectCache
from samite_operators.events import EventPoster, EventRecords
from samite_operators.instruments import Instruments
from samite_operators.liveness import Vitals
from samite_operators.metering import MeteredApi
from samite_operators.rights import Rights
from samite_operators.run_state import Next
from samite_operators.runtimes import Runtimes
from samite_operators.services import Services
from samite_operators.settings import Settings
from samite_operators.storage_access import RunStores
from samite_operators.telling import Teller
from samite_operators.turn import Turns

NAMESPACE, NAME, UID = "team-a", "demo", "6f0c1a52-4c1b-4a39-9a52-0f7f4d1c9d01"
HANDOVER = {"optimizer": "Carry", "lrSchedule": "Carry", "dataCursor": "Carry"}


def training_run(**spec: Any) -> Document:
    """A run of two stages on two nodes, as somebody applies it."""
    stage = {"contextLength": 128, "workers": {"min": 2, "max": 2}, "gpusPerWorker": 0, "batch": {"tokens": 2048}}
    return {
        "apiVersion": "samite.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "uid": UID, "generation": 1},
        "spec": {
            "engine": "RayCluster",
            "checkpoint": {"uri": "s3://bucket/demo", "interval": {"steps": 5}},
            "stages": [
                {**stage, "name": "short", "budget": {"steps": 20}},
                {**stage, "name": "long", "budget": {"steps": 12}, "handover": HANDOVER},
            ],
            **spec,
        },
    }


@dataclass
class SimulatedEngine:
    """The engine's seam over `World`, which checks every promise: one attempt at a time, nothing destroyed on too little evidence."""

    world: World
    api: FakeApi
    applied: list[Action] = field(default_factory=list)
    observed: int = 0
    problems: list[Any] = field(default_factory=list)
    before_apply: Callable[[Action], None] = lambda _action: None
    forgotten: list[str] = field(default_factory=list)
    pods: list[Document] = field(default_factory=list)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def now_s(self) -> float:
        return self.world.now

    def observe(self, run: Document, plan: RunPlan, memory: Memory) -> Observed:
        self.observed += 1
        if self.api.down:
            return Observed(at_s=self.world.now, admitted=None, suspend=None)
        wishes = wishes_of(run, memory)
        return replace(self.world.observe(memory), cancel=wishes.cancel, suspend=wishes.suspend, requests=wishes.requests)

    def apply(self, run: Document, plan: RunPlan, actions: Iterable[Action], *, runtime: Any) -> list[Any]:
        for action in actions:
            self.before_apply(action)
            self.applied.append(action)
            self._mirror(run, action)
            self.world.apply(action)
        return self.problems

    def note_pod(self, pod: Document) -> None:
        self.pods.append(pod)

    def take_events(self, uid: str) -> list[tuple[str, dict[str, Any]]]:
        told, self.told = self.told, []
        return told

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    def close(self) -> None:
        pass

    def _mirror(self, run: Document, action: Action) -> None:
        """The clusters as objects too: what the finalizer and the sweep look at."""
        if isinstance(action, StartCluster) and self.api.look(RAY_CLUSTER, NAMESPACE, action.cluster_id) is None:
            labels = {"samite.dev/run": NAME, "samite.dev/run-uid": run["metadata"]["uid"]}
            owner = {"apiVersion": run["apiVersion"], "kind": run["kind"], "name": NAME, "uid": run["metadata"]["uid"]}
            self.api.put(
                RAY_CLUSTER,
                {"metadata": {"name": action.cluster_id, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}},
            )
        elif isinstance(action, StopCluster | ReleaseCluster):
            self.api.delete(RAY_CLUSTER, NAMESPACE, action.cluster_id)


class Clock:
    def __init__(self, world: World) -> None:
        self.world = world

    def __call__(self) -> float:
        return self.world.now


@dataclass
class Operator:
    """One operator process over the world. `restart` is the next process: all that is kept is in the API server and in the world."""

    api: FakeApi
    world: World
    engine: SimulatedEngine
    settings: Settings
    leads: bool = True
    outcomes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        clock = Clock(self.world)
        self.instruments, self.vitals = Instruments(), Vitals(clock=clock)
        self.metered = MeteredApi(self.api, self.instruments, self.vitals)
        self.cache = ObjectCache(clock=clock)
        self.cached = CachedApi(self.metered, self.cache, self.vitals, watched=(TRAINING_RUN,), clock=clock)
        self.store = MemoryStore(f"memory://{secrets.token_hex(8)}")
        self.records = EventRecords()
        self.ledger = BlameLedger(self.metered, host_of=self._host_of, now=clock, clock=clock)
        self.services = Services(
            settings=self.settings,
            api=self.cached,
            metered=self.metered,
            cache=self.cache,
            engine=lambda _namespace: self.engine,
            may_act=lambda: self.leads,
            instruments=self.instruments,
            vitals=self.vitals,
            teller=Teller(
                poster=EventPoster(self.metered, identity="operator-0", clock=clock),
                records=self.records,
                instruments=self.instruments,
                storage=lambda _run: self.store,
            ),
            ledger=self.ledger,
            runtimes=Runtimes(self.metered),
            rights=Rights(self.metered, self.settings),
            stores=RunStores(self.metered, clock=clock),
            clock=clock,
        )
        self.turns = Turns(self.services)
        self.relist()

    def relist(self) -> None:
        """What the watches would have told."""
        try:
            self.cache.reconcile(TRAINING_RUN, self.api.list(TRAINING_RUN))
        except ApiError:
            return

    def turn(self) -> Next:
        self.relist()
        self.vitals.answered()
        following = self.turns.take(NAMESPACE, NAME)
        self.outcomes.append(following.outcome)
        return following

    def run(self, seconds: float, *, step_s: float = 1.0) -> None:
        """Turns with time between them."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.turn()
            self.world.tick(step_s)

    def until(self, phase: str, *, limit_s: float = 600.0) -> None:
        began = self.world.now
        while self.phase != phase:
            assert self.world.now - began < limit_s, f"{phase} was not reached: {self.status.get('phase')} {self.status.get('message')}"
            self.turn()
            self.world.tick(1.0)

    @property
    def object(self) -> Document | None:
        return self.api.look(TRAINING_RUN, NAMESPACE, NAME)

    @property
    def status(self) -> Document:
        return (self.object or {}).get("status") or {}

    @property
    def phase(self) -> str:
        return self.status.get("phase", "")

    def condition(self, name: str) -> Document:
        return next((item for item in self.status.get("conditions", ()) if item["type"] == name), {})

    def writes(self, plural: str = "trainingruns", verb: str = "patch") -> int:
        return sum(1 for made, kind, _ in self.api.calls if (made, kind) == (verb, plural))

    def change(self, kind: Kind = TRAINING_RUN, **parts: Any) -> None:
        """What a person applies; a change of the spec counts the generation up, as the API server does."""
        found = self.object
        assert found is not None
        metadata = {**(parts.get("metadata") or {}), "namespace": NAMESPACE, "name": NAME}
        if "spec" in parts:
            metadata["generation"] = found["metadata"]["generation"] + 1
        self.api.put(kind, {**parts, "metadata": metadata})

    def _host_of(self, namespace: str, node: str) -> str:
        return node if self.api.look(NODE, "", node) is not None else ""


@pytest.fixture
def make_operator() -> Callable[..., Operator]:
    def make(*, settings: Settings | None = None, run: Document | None = None, **spec: Any) -> Operator:
        api = FakeApi()
        document = training_run(**spec) if run is None else run
        api.put(TRAINING_RUN, document)
        steps = tuple(stage["budget"].get("steps", 10) for stage in document["spec"]["stages"])
        world = World(uid=UID, stage_steps=steps, checkpoint_every=5)
        return Operator(api, world, SimulatedEngine(world, api), settings or Settings(turn_s=1.0))

    return make


@pytest.fixture
def operator(make_operator: Callable[..., Operator]) -> Operator:
    return make_operator()
