"""What every turn needs, put together once at start and handed around: no module of the operator keeps state of its own beside these objects."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from samite.engines.kuberay.api import TRAINING_RUN, Document
from samite.lifecycle import Action, Memory, Observed, RunPlan
from samite_operators.blame import BlameLedger
from samite_operators.cache import CachedApi, ObjectCache
from samite_operators.instruments import Instruments
from samite_operators.liveness import Vitals
from samite_operators.metering import MeteredApi
from samite_operators.rights import Rights
from samite_operators.runtimes import Runtimes
from samite_operators.settings import Settings
from samite_operators.storage_access import RunStores
from samite_operators.telling import Teller


class Problem(Protocol):
    """An action that could not be applied."""

    @property
    def message(self) -> str:
        """What was wanted, what happened, what to do."""
        ...

    @property
    def permanent(self) -> bool:
        """Waiting will not help."""
        ...


class Engine(Protocol):
    """The engine of one namespace: `samite.engines.kuberay.KubeRayEngine`. A seam, because turns are tested over engines that fail on purpose."""

    def now_s(self) -> float:
        """The clock of observations."""
        ...

    def observe(self, run: Mapping[str, Any], plan: RunPlan, memory: Memory) -> Observed:
        """Everything that is seen now."""
        ...

    def apply(self, run: Mapping[str, Any], plan: RunPlan, actions: Iterable[Action], *, runtime: Any) -> list[Any]:
        """Do what was decided; returns what could not be done, each with `message` and `permanent`."""
        ...

    def note_pod(self, pod: Mapping[str, Any]) -> None:
        """What a watch saw of a pod whose container has ended."""
        ...

    def take_events(self, uid: str) -> list[tuple[str, dict[str, Any]]]:
        """(name, attributes) of what the engine did beside its actions since the last call."""
        ...

    def forget(self, uid: str) -> None:
        """The run is gone."""
        ...

    def close(self) -> None:
        """End every thread. The runs go on."""
        ...


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of one operator process."""

    settings: Settings
    api: CachedApi
    metered: MeteredApi
    cache: ObjectCache
    engine: Callable[[str], Engine]
    """The engine of a namespace."""
    may_act: Callable[[], bool]
    """True while this process holds the operator's Lease."""
    instruments: Instruments
    vitals: Vitals
    teller: Teller
    ledger: BlameLedger
    runtimes: Runtimes
    rights: Rights
    stores: RunStores
    clock: Callable[[], float]
    """Monotonic."""

    def newest(self, namespace: str, name: str) -> Document | None:
        """The newest version of a run that is known here."""
        found = self.cache.get(TRAINING_RUN, namespace, name)
        return None if found is None else found[0]
