"""Operator processes for tests: started, killed, asked how they are."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class OperatorProcess:
    """One `python -m samite_operators`, with Ray's dashboards at another address."""

    def __init__(self, kubeconfig: Path, log: Path, *, played_ray: str, identity: str = "operator-0", **settings: str) -> None:
        self.port, self.log, self.identity = _free_port(), log, identity
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("SAMITE_", "KUBE"))},
            "KUBECONFIG": str(kubeconfig),
            "PLAYED_RAY": played_ray,
            "SAMITE_OPERATOR_NAMESPACE": "samite-system",
            "SAMITE_OPERATOR_IDENTITY": identity,
            "SAMITE_HEALTH_PORT": str(self.port),
            "SAMITE_LOG_FORMAT": "text",
            "SAMITE_LEASE_SECONDS": "6",
            "SAMITE_TURN_SECONDS": "1",
            "OMP_NUM_THREADS": "1",
            **settings,
        }
        self._file = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "operator_with_played_ray.py")],
            env=environment,
            stdout=self._file,
            stderr=self._file,
            cwd=log.parent,
        )

    def __enter__(self) -> "OperatorProcess":
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=10)
        self._file.close()

    def terminate(self, *, limit_s: float = 30.0) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=limit_s)

    def probe(self, path: str) -> tuple[int, Any]:
        """Status and body of a probe; (0, None) if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                text = answer.read().decode()
                return answer.status, json.loads(text) if path != "/metrics" else text
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
        except OSError:
            return 0, None

    def wait_ready(self, *, limit_s: float = 60.0) -> None:
        ends_s = time.monotonic() + limit_s
        while self.probe("/readyz")[0] != 200:
            assert self.process.poll() is None, f"the operator ended: see {self.log}\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < ends_s, f"not ready: {self.probe('/readyz')}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
