"""Ray's Jobs REST API, as much of it as an engine needs: submit, look, stop, read logs.

Both engines speak to Ray through this module, so the control plane never imports Ray. A deterministic submission id makes submitting
idempotent: Ray refuses a repeated id, and `submit` reports that as "existed", which the engine takes as its own earlier submission.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from samite.errors import NotFoundError, SamiteError, UnreachableError

_MOST_ROWS = 10_000
"""More than this Ray's API server gives to nobody."""


class JobStatus(StrEnum):
    """Ray's words for the state of a submission."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def is_over(self) -> bool:
        """True if the submission will never run again."""
        return self not in {JobStatus.PENDING, JobStatus.RUNNING}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One submission as Ray reports it."""

    submission_id: str
    status: JobStatus
    message: str
    exit_code: int | None
    ray_job_id: str = ""
    """Ray's own number of the job, under which its actors run; empty before its driver has joined the cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RayJobs:
    """A Ray dashboard at `address` (`http://127.0.0.1:8265`), with its token. Every call ends within `timeout_s`."""

    address: str
    token: str = ""
    timeout_s: float = 5.0

    def is_up(self) -> bool:
        """True if the dashboard answers."""
        try:
            self._call("GET", "/api/version")
        except SamiteError:
            return False
        return True

    def submit(self, submission_id: str, entrypoint: str, environment: Mapping[str, str]) -> bool:
        """Submit `entrypoint` (a shell line) once. Returns False if this id was submitted before. Raises UnreachableError if Ray does not answer."""
        body = {"submission_id": submission_id, "entrypoint": entrypoint, "runtime_env": {"env_vars": dict(environment)}}
        try:
            self._call("POST", "/api/jobs/", body, timeout_s=60.0)
        except SamiteError as error:
            if "already exists" in str(error):
                return False
            raise
        return True

    def job(self, submission_id: str) -> Job:
        """The submission's state. Raises NotFoundError if Ray does not know it, UnreachableError if Ray does not answer."""
        found = self._call("GET", f"/api/jobs/{submission_id}")
        code = found.get("driver_exit_code")
        return Job(
            submission_id=submission_id,
            status=JobStatus(found["status"]),
            message=found.get("message") or "",
            exit_code=int(code) if code is not None else None,
            ray_job_id=found.get("job_id") or "",
        )

    def stop(self, submission_id: str) -> None:
        """Ask Ray to stop the submission; returns at once. Raises NotFoundError, UnreachableError."""
        self._call("POST", f"/api/jobs/{submission_id}/stop", {})

    def actors_left(self, ray_job_id: str) -> int:
        """How many actors (ranks among them) of a job are not dead, says Ray's own table. A driver that ends takes all of them with it.

        Detached ones are not counted: Ray's own helpers, which are meant to outlive the job. Raises SamiteError if Ray does not answer, or tells
        a part of its table only.
        """
        wanted = (("job_id", "=", ray_job_id), ("state", "!=", "DEAD"))
        filters = [
            pair for key, sign, value in wanted for pair in (("filter_keys", key), ("filter_predicates", sign), ("filter_values", value))
        ]
        answer = self._call("GET", f"/api/v0/actors?{urlencode([('detail', 'true'), ('limit', _MOST_ROWS), *filters])}")
        found = answer["data"]["result"]
        if found["total"] > found["num_after_truncation"]:
            raise SamiteError(
                f"Ray at {self.address} told {found['num_after_truncation']} of its {found['total']} actors: the rest is unknown"
            )
        return sum(not row.get("is_detached") for row in found["result"])

    def logs(self, submission_id: str) -> str:
        """What the driver printed so far."""
        return str(self._call("GET", f"/api/jobs/{submission_id}/logs").get("logs", ""))

    def alive_node_addresses(self) -> set[str]:
        """Addresses of the nodes that Ray believes alive."""
        found = self._call("GET", "/api/v0/nodes")
        return {node["node_ip"] for node in found["data"]["result"]["result"] if node["state"] == "ALIVE"}

    def node_states(self) -> dict[str, str]:
        """`ALIVE` or `DEAD` for each address that Ray has had a node at; an address that a later node took over is ALIVE."""
        found = self._call("GET", "/api/v0/nodes?limit=10000")
        states: dict[str, str] = {}
        for node in found["data"]["result"]["result"]:
            if states.get(node["node_ip"]) != "ALIVE":
                states[node["node_ip"]] = node["state"]
        return states

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the address is ours, http on loopback or in-cluster
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {self.token}"} if self.token else {})},
        )
        # The machine's proxy settings have no say here: the dashboard is on loopback or inside the cluster.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s or self.timeout_s) as answer:
                found = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace").strip()
            if error.code == 404:
                raise NotFoundError(f"Ray at {self.address} does not know {path}") from error
            raise SamiteError(f"Ray refused {method} {path} with {error.code}: {_last_line(text)}") from error
        except (OSError, HTTPException, json.JSONDecodeError) as error:
            raise UnreachableError(f"Ray's dashboard at {self.address} did not answer {method} {path}: {error}") from error
        return found if isinstance(found, dict) else {"data": found}


def _last_line(text: str) -> str:
    """The line of a Python traceback that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip() not in {"", "."}]
    return lines[-1] if lines else "no reason given"
