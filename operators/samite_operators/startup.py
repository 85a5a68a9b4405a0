"""How kopf is set up: no peering, bounded watches, nothing of its own on our objects. Every setting has its reason; none is left to a default that moves."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from samite.engines.kuberay.api import Kind
from samite.engines.kuberay.names import RUN
from samite_operators.handlers import LABELLED, Watcher, register
from samite_operators.settings import Settings

if TYPE_CHECKING:
    import kopf

ANNOTATIONS = "operator.samite.dev"
"""Where kopf would keep notes on an object. With event handlers alone it never does."""
KOPF_FINALIZER = f"{ANNOTATIONS}/none"
"""On no object, ever."""


def kopf_settings(settings: Settings) -> "kopf.OperatorSettings":
    """Settings for `kopf.operator`."""
    import kopf

    found = kopf.OperatorSettings()
    # A peering object of somebody else's operator could freeze us; our own Lease keeps a second one out.
    found.peering.standalone = True
    # Watches end by themselves, so that a connection that died silently is found: by the server, by us, and after 70 s without even a bookmark.
    found.watching.server_timeout = 300
    found.watching.client_timeout = 330
    found.watching.connect_timeout = 10
    found.watching.inactivity_timeout = 70
    found.watching.reconnect_backoff = 1.0
    # Memory follows our objects, not those of the cluster.
    found.watching.chunk_size = 500
    for kind in LABELLED:
        found.watching.label_selectors[kind.group, kind.version, kind.plural] = RUN
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 10
    found.networking.error_backoffs = (1, 2, 3, 5, 8)
    found.networking.enforce_retry_after = True
    # Namespaces and kinds are fixed at start: no right to list namespaces or definitions is needed.
    found.scanning.disabled = True
    # Handlers only take note of events; what is posted is posted by us, under our own name.
    found.posting.enabled = False
    found.posting.reporting_component = "samite-operator"
    found.posting.event_name_prefix = "samite-"
    # Not ours: kopf takes its finalizer off every object that no handler of its own holds, and ours is held by turns.
    found.persistence.finalizer = KOPF_FINALIZER
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=ANNOTATIONS)
    found.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=ANNOTATIONS)
    found.queueing.worker_limit = settings.workers
    found.queueing.idle_timeout = 1.0
    found.queueing.exit_timeout = 1.0
    found.execution.max_workers = 2
    found.process.ultimate_exiting_timeout = 60.0
    return found


def operator(settings: Settings, watcher: Watcher, kinds: Collection[Kind], *, stop: Any) -> Any:
    """The coroutine that runs kopf over `kinds` until the asyncio event `stop` is set, SIGTERM comes, or a watch cannot go on."""
    import kopf

    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry, id="client")(kopf.login_via_client)
    register(registry, watcher, kinds)
    return kopf.operator(
        registry=registry,
        settings=kopf_settings(settings),
        standalone=True,
        clusterwide=settings.clusterwide,
        namespaces=settings.namespaces,
        stop_flag=stop,
    )
