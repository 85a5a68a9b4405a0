"""kopf is set up to leave our objects alone and to lose no watch silently."""

import kopf

from samite.engines.kuberay.names import FINALIZER
from samite_operators.settings import Settings
from samite_operators.startup import kopf_settings


def test_kopf_is_told_everything_that_its_defaults_would_get_wrong():
    found = kopf_settings(Settings(workers=7))
    assert found.peering.standalone
    assert (found.watching.server_timeout, found.watching.client_timeout, found.watching.inactivity_timeout) == (300, 330, 70)
    assert found.watching.chunk_size == 500
    assert (found.networking.request_timeout, found.networking.connect_timeout) == (30, 10)
    assert found.networking.enforce_retry_after
    assert found.scanning.disabled
    assert not found.posting.enabled
    assert found.queueing.worker_limit == 7


def test_kopf_would_take_our_finalizer_off_if_it_were_its_own():
    assert kopf_settings(Settings()).persistence.finalizer != FINALIZER


def test_only_our_own_pods_clusters_and_leases_are_streamed():
    selectors = kopf_settings(Settings()).watching.label_selectors

    def of(group: str, plural: str) -> list[str]:
        resource = kopf.Resource(group=group, version="v1", plural=plural, kind="X", namespaced=True, preferred=True)
        return selectors.collect(resource)

    assert of("", "pods") == of("ray.io", "rayclusters") == of("coordination.k8s.io", "leases") == ["samite.dev/run"]
    assert of("", "nodes") == []
