"""Fixtures of the CRD tests: an API server alone, with the definitions in it, and what `samite validate` says of a document."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from api_server import lone_api_server
from box.binaries import MissingToolError
from box.kubectl import Kubectl
from box.waiting import until

from samite.engines.kuberay.api_client import RealApi, connect


@pytest.fixture(scope="session")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """An API server without any CRD. Skipped, with the reason, where its binaries are missing."""
    if os.environ.get("SAMITE_TEST_KUBECONFIG"):
        pytest.skip("installs and removes CRDs, so it needs an API server of its own; SAMITE_TEST_KUBECONFIG names one that is not ours")
    try:
        with lone_api_server(tmp_path_factory.mktemp("api-server")) as kubectl:
            yield kubectl
    except MissingToolError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def server(bare_server: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """An API server with the four definitions of this version, applied by `samite crds apply`."""
    from samite.cli.app import run

    assert run(["--kubeconfig", str(bare_server.kubeconfig), "crds", "apply"]) == 0
    # Established comes a moment before the first request is served.
    until(lambda: bare_server("get", "trun,truntime,ctruntime,nblame") is not None, "the new kinds to be served", limit_s=60)
    return bare_server


@pytest.fixture(scope="session")
def api(server: Kubectl) -> RealApi:
    """The same server, for whole documents and their errors."""
    return connect(kubeconfig=str(Path(server.kubeconfig)), timeout_s=30.0)
