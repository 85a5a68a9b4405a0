"""The parts of one operator process, put together: built once at start, begun when this process leads, ended in order."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from samite.engines.kuberay.api import LEASE, NODE, Document, KubernetesApi
from samite_operators.blame import BlameLedger
from samite_operators.cache import CachedApi, ObjectCache
from samite_operators.events import EventPoster, EventRecords
from samite_operators.handlers import WATCHED, Watcher
from samite_operators.instruments import Instruments
from samite_operators.keeper import Keeper
from samite_operators.leader import Leadership
from samite_operators.liveness import ProbeServer, Vitals
from samite_operators.metering import MeteredApi
from samite_operators.orphans import OrphanSweep
from samite_operators.resync import Resync, View
from samite_operators.rights import Rights
from samite_operators.runtimes import Runtimes
from samite_operators.services import Engine, Services
from samite_operators.settings import Settings
from samite_operators.storage_access import RunStores
from samite_operators.telling import Teller
from samite_operators.turn import Turns

EngineOf = Callable[[str, CachedApi, RunStores, BlameLedger], Engine]
"""(namespace, api, stores, ledger) to the engine of that namespace."""


@dataclass(frozen=True, kw_only=True)
class Process:
    """One operator process."""

    settings: Settings
    vitals: Vitals
    instruments: Instruments
    probes: ProbeServer
    leadership: Leadership
    services: Services
    records: EventRecords
    keeper: Keeper
    watcher: Watcher
    resync: Resync
    orphans: OrphanSweep
    engines: "Engines"
    export: Any

    def first_look(self) -> View:
        """List everything; returns what can be watched, no kind if not even runs can be listed. Raises ApiError without an answer."""
        view = self.resync.look(WATCHED)
        if view.kinds:
            self.services.api.watched = frozenset(kind.plural for kind in view.kinds)
        return view

    def start(self) -> None:
        """Begin to take turns."""
        self.records.start()
        self.keeper.start()
        self.resync.start(WATCHED)
        self.orphans.start()

    def kopf(self, view: View, *, stop: Any) -> Any:
        """The coroutine of kopf's watches over `view`."""
        from samite_operators.startup import operator

        settings = replace(self.settings, namespaces=view.namespaces)
        return operator(settings, self.watcher, sorted(view.kinds, key=lambda kind: kind.plural), stop=stop)

    def tell(self) -> None:
        """Record the standing values of the process."""
        record = self.instruments.record
        record("samite.operator.run.count", self.keeper.runs)
        record("samite.operator.change.age", self.vitals.oldest_due_s)
        record("samite.operator.list.age", self.vitals.list_age_s)
        record("samite.operator.watch.stalled", self.vitals.watches_behind)
        record("samite.operator.leader", float(self.leadership.held))

    def shut_down(self) -> None:
        """End in order: no new turns, those that are on finish, records are written, the Lease is given back."""
        self.vitals.ready, self.vitals.waiting_for = False, "the end"
        self.orphans.stop()
        self.resync.stop()
        ended = self.keeper.stop()
        self.records.stop()
        self.engines.close()
        if ended:
            # With a turn still on, the Lease runs out by itself: nobody may act before that turn has ended.
            self.leadership.stop()
        if self.export is not None:
            self.export.shutdown(5.0)
        self.probes.stop()


class LeaseOfOperator:
    """The operator's own Lease in the API server, for `Leadership`."""

    def __init__(self, api: KubernetesApi, namespace: str, name: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name

    def read(self) -> Document:
        """The Lease."""
        return self._api.get(LEASE, self._namespace, self._name)

    def create(self, lease: Document) -> Document:
        """Create it."""
        return self._api.create(LEASE, self._namespace, lease)

    def replace(self, lease: Document) -> Document:
        """Change it if it is still the one that was read."""
        patch = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": lease["spec"]}
        return self._api.patch(LEASE, self._namespace, self._name, patch)


def build(
    settings: Settings,
    *,
    token_key: bytes,
    api: KubernetesApi | None = None,
    engine_of: EngineOf | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Process:
    """Put a process together. `api` None: the API server of this pod, or of KUBECONFIG. Makes no request. Raises UsageError without any."""
    export = _export(settings)
    instruments, vitals = Instruments(export), Vitals(clock=clock)
    lease_api = api
    if api is None or lease_api is None:
        from samite.engines.kuberay.api_client import connect

        # A renewal that hangs must end while there is still time for another one.
        api, lease_api = connect(timeout_s=10.0), connect(timeout_s=settings.lease_s / 5.0)
    metered = MeteredApi(api, instruments, vitals)
    leadership = Leadership(
        LeaseOfOperator(MeteredApi(lease_api, instruments, vitals), settings.namespace, settings.lease_name),
        name=settings.lease_name,
        namespace=settings.namespace,
        identity=settings.identity,
        lease_s=settings.lease_s,
        renew_s=settings.renew_s,
        clock=clock,
    )
    cache = ObjectCache(clock=clock)
    cached = CachedApi(metered, cache, vitals, watched=(), clock=clock)
    stores = RunStores(metered, readable=settings.storage_secrets, clock=clock)
    records = EventRecords()
    ledger = BlameLedger(metered, host_of=lambda _, node: node if cache.get(NODE, "", node) is not None else "", clock=clock)
    teller = Teller(
        poster=EventPoster(metered, identity=settings.identity, clock=clock), records=records, instruments=instruments, storage=stores.of
    )
    engines = Engines(engine_of or _kuberay(token_key, cached, clock), cached, stores, ledger)
    rights = Rights(metered, settings)
    services = Services(
        settings=settings,
        api=cached,
        metered=metered,
        cache=cache,
        engine=engines.of,
        may_act=lambda: leadership.held,
        instruments=instruments,
        vitals=vitals,
        teller=teller,
        ledger=ledger,
        runtimes=Runtimes(metered),
        rights=rights,
        stores=stores,
        clock=clock,
    )
    keeper = Keeper(Turns(services).take, instruments=instruments, vitals=vitals, workers=settings.workers, clock=clock)
    watcher = Watcher(cache, keeper)
    return Process(
        settings=settings,
        vitals=vitals,
        instruments=instruments,
        probes=ProbeServer(vitals, instruments.exposition, port=settings.health_port),
        leadership=leadership,
        services=services,
        records=records,
        keeper=keeper,
        watcher=watcher,
        resync=Resync(metered, cache, watcher, keeper, vitals, rights, settings),
        orphans=OrphanSweep(metered, settings, instruments, ledger, teller, may_act=lambda: leadership.held, clock=clock),
        engines=engines,
        export=export,
    )


class Engines:
    """One engine for each namespace, made when it is first needed."""

    def __init__(self, make: EngineOf, api: CachedApi, stores: RunStores, ledger: BlameLedger) -> None:
        self._make, self._api, self._stores, self._ledger = make, api, stores, ledger
        self._engines: dict[str, Engine] = {}

    def of(self, namespace: str) -> Engine:
        """The engine of `namespace`."""
        engine = self._engines.get(namespace)
        if engine is None:
            # Two threads may make one at the same time; the first that is kept is used by both.
            engine = self._engines.setdefault(namespace, self._make(namespace, self._api, self._stores, self._ledger))
        return engine

    def close(self) -> None:
        """End the threads of every engine."""
        for engine in tuple(self._engines.values()):
            engine.close()


def _kuberay(token_key: bytes, api: CachedApi, clock: Callable[[], float]) -> EngineOf:
    from samite.engines.kuberay.engine import KubeRayEngine
    from samite.engines.kuberay.node_watch import NodeWatch

    nodes = NodeWatch(api, clock)

    def make(namespace: str, api: CachedApi, stores: RunStores, ledger: BlameLedger) -> Engine:
        return KubeRayEngine(
            api, namespace=namespace, token_key=token_key, storage=stores.of, excluded=ledger.excluded, nodes=nodes, clock=clock
        )

    return make


def _export(settings: Settings) -> Any:
    if not settings.otlp_endpoint:
        return None
    from samite.telemetry.otlp import OtlpExport

    return OtlpExport(settings.otlp_endpoint, resource={"service.name": "samite-operator", "service.instance.id": settings.identity})
