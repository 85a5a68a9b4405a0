"""The operator's process as it is, except that Ray's dashboards are looked for at PLAYED_RAY. Started by test_operator_process.py."""

import os
import sys

from samite.engines.kuberay.engine import KubeRayEngine
from samite.engines.ray_jobs import RayJobs
from samite_operators.__main__ import run, set_up_logging
from samite_operators.process import build
from samite_operators.settings import Settings

settings = Settings.from_environment()
set_up_logging(settings)


def engine(namespace, api, stores, ledger):
    def jobs(cluster_id: str, _namespace: str, token: str) -> RayJobs:
        return RayJobs(address=f"{os.environ['PLAYED_RAY']}/{cluster_id}", token=token)

    return KubeRayEngine(api, namespace=namespace, token_key=b"k" * 32, storage=stores.of, excluded=ledger.excluded, jobs=jobs)


sys.exit(run(build(settings, token_key=b"k" * 32, engine_of=engine)))
