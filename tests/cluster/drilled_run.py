"""One run of the Kubernetes drills: what the API server and its Lease show of it, what must not change it, and what it must recover from."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from box.kubectl import Kubectl
from box.waiting import until

from samite.engines.kuberay import names
from samite.engines.kuberay.api import LEASE, POD, RAY_CLUSTER, TRAINING_RUN, ApiError, Document, GoneApiError, Kind, RetryableApiError
from samite.engines.kuberay.api_client import RealApi
from samite.spec.lease import LeaseReport, lease_name, read_lease

if TYPE_CHECKING:
    from drill_world import World

PATIENCE_S = 60.0


class PatientApi:
    """An API server that may be busy or away for a moment: what waiting helps against is asked again."""

    def __init__(self, api: RealApi) -> None:
        self._api = api

    def get(self, kind: Kind, namespace: str, name: str) -> Document:
        return self._again(lambda: self._api.get(kind, namespace, name))

    def list(self, kind: Kind, namespace: str = "", **options: Any) -> list[Document]:
        return self._again(lambda: self._api.list(kind, namespace, **options).items)

    def delete(self, kind: Kind, namespace: str, name: str, **options: Any) -> None:
        self._again(lambda: self._api.delete(kind, namespace, name, **options))

    @staticmethod
    def _again(call: Callable[[], Any]) -> Any:
        ends_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except RetryableApiError:
                if time.monotonic() > ends_s:
                    raise
                time.sleep(0.5)


def say(text: str) -> None:
    """A line for whoever reads the log of the drills."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@dataclass
class Drilled:
    """One run, as the API server and its Lease show it."""

    world: "World"
    name: str

    def object(self) -> Document:
        return self.world.api.get(TRAINING_RUN, self.world.team, self.name)

    def status(self) -> Document:
        return dict(self.object().get("status") or {})

    def phase(self) -> str:
        return str(self.status().get("phase", ""))

    def condition(self, kind: str) -> Document:
        return next((item for item in self.status().get("conditions") or () if item["type"] == kind), {})

    def report(self) -> LeaseReport:
        """What the driver says now."""
        lease = self.world.api.get(LEASE, self.world.team, lease_name(self.name))
        return read_lease(lease["metadata"].get("annotations") or {}, seen_at_s=0.0)

    def step(self) -> int:
        """The step of the quickest rank; -1 before there is any."""
        try:
            return self.report().max_step
        except GoneApiError:
            return -1

    def pods(self, role: str = "") -> list[Document]:
        labels = {names.RUN: self.name, **({names.ROLE: role} if role else {})}
        return self.world.api.list(POD, self.world.team, labels=labels)

    def head(self) -> Document:
        (pod,) = [pod for pod in self.pods("head") if "deletionTimestamp" not in pod["metadata"]]
        return pod

    def clusters(self) -> list[Document]:
        return self.world.api.list(RAY_CLUSTER, self.world.team, labels={names.RUN: self.name})

    def machine_of_rank(self, rank: int) -> int:
        """Number of the box's node on which a rank trains."""
        (pod,) = {sign.heartbeat.node for sign in self.report().signs if sign.heartbeat.rank == rank}
        return int(self.world.api.get(POD, self.world.team, pod)["spec"]["nodeName"][-1])

    def reasons(self) -> set[str]:
        """Reasons of the Kubernetes Events about the run."""
        found = self.world.inside.items("events", f"--field-selector=involvedObject.name={self.name}")
        return {str(item["reason"]) for item in found}

    def told(self) -> str:
        """One line for a message of a failed wait."""
        status = self.status()
        return f"{self.name} is {status.get('phase')} ({status.get('reason')}: {status.get('message')}), attempt {status.get('attempt')}, step {self.step()}"

    def wait_phase(self, *wanted: str, limit_s: float) -> float:
        return self._wait(lambda: self.phase() in wanted, " or ".join(wanted), limit_s)

    def wait_step(self, step: int, *, limit_s: float) -> float:
        return self._wait(lambda: self.step() >= step, f"step {step}", limit_s)

    def wait_training(self, *, limit_s: float = 300) -> None:
        """Running, with a committed checkpoint."""
        took_s = self._wait(lambda: self.phase() == "Running" and self.report().checkpoint_step > 0, "a first checkpoint", limit_s)
        say(f"{self.name} trains, first checkpoint after {took_s:.0f} s, step {self.step()}")

    def _wait(self, met: Any, what: str, limit_s: float) -> float:
        try:
            return until(met, what, limit_s=limit_s, every_s=0.5)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.told()}") from None

    @contextlib.contextmanager
    def untouched(self, *, steps: int = 5, limit_s: float = 90) -> Iterator[None]:
        """What happens inside must change nothing: same pods, cluster, submission; Running; and training goes on afterwards."""
        before, begun_at = self._identity(), self.step()
        yield
        now = self.step()
        self.wait_step(max(now, begun_at) + steps, limit_s=limit_s)
        self.wait_phase("Running", limit_s=30)
        assert self._identity() == before
        say(f"{self.name} was not touched: step {begun_at} before, {now} when it was over, {self.step()} now")

    def _identity(self) -> dict[str, Any]:
        status = self.status()
        return {
            "pods": {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods()},
            "clusters": {item["metadata"]["uid"]: item["metadata"]["generation"] for item in self.clusters()},
            "submission": status.get("submissionId"),
            "restarts": status.get("restarts"),
            "recoveries": len(status.get("recoveries") or ()),
        }

    @contextlib.contextmanager
    def recovers(self, *, levels: set[int], failure_class: str, limit_s: float = 300) -> Iterator[None]:
        """What happens inside must be answered by one recovery that resumes from a committed checkpoint; the phase is Running only once it trains."""
        before = self.status()
        saved, known = self.report().checkpoint_step, len(before.get("recoveries") or ())
        with _Watched(self) as watched:
            began_s = time.monotonic()
            yield
            self._wait(lambda: len(self.status().get("recoveries") or ()) > known, "a recovery", limit_s)
            took_s = time.monotonic() - began_s
        self.wait_phase("Running", limit_s=30)
        after = self.status()
        record = after["recoveries"][-1]
        parts = {key: round(float(record[key]), 1) for key in ("detectS", "restartS", "loadS", "firstStepS")}
        say(
            f"{self.name}: L{record['level']} {record['failureClass']} {record['errorType']}, {took_s:.0f} s from the blow, {parts}, phases {watched.phases}"
        )
        assert record["failureClass"] == failure_class
        assert record["level"] in levels
        paid = {key: value - (before.get("restarts") or {}).get(key, 0) for key, value in after["restarts"].items()}
        assert {key: value for key, value in paid.items() if value} == {failure_class: 1}
        assert watched.lowest_step >= saved, f"resumed at step {watched.lowest_step}, although step {saved} was committed"
        assert watched.phases[0] == "Running"
        assert "Recovering" in watched.phases
        assert set(watched.phases) <= {"Running", "Recovering"}
        assert watched.running_meanwhile == [], "Running was shown before the next attempt trained"
        assert len(self.clusters()) == 1


class _Watched:
    """Phases and steps of a run, looked at twice a second."""

    def __init__(self, run: Drilled) -> None:
        self.phases: list[str] = []
        self.lowest_step = 1 << 30
        self.running_meanwhile: list[str] = []
        self._run, self._ends = run, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watched":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ends.set()
        self._thread.join(30)

    def _look(self) -> None:
        first = len(self._run.status().get("recoveries") or ())
        while True:
            with contextlib.suppress(ApiError):
                status = self._run.status()
                phase = str(status.get("phase"))
                if not self.phases or self.phases[-1] != phase:
                    self.phases.append(phase)
                if phase == "Running" and "Recovering" in self.phases and len(status.get("recoveries") or ()) == first:
                    self.running_meanwhile.append(str(status.get("submissionId")))
                step = self._run.report().max_step
                if "Recovering" in self.phases and step > 0:
                    self.lowest_step = min(self.lowest_step, step)
            if self._ends.wait(0.5):
                return


def signal_in(kubectl: Kubectl, pod: str, pattern: str, signal: str) -> list[str]:
    """Send a signal to the processes of a pod whose command line matches; what they were. LookupError if there is none."""
    program = f"""
import os, re, signal, pathlib
for folder in pathlib.Path('/proc').iterdir():
    if folder.name.isdigit() and int(folder.name) != os.getpid():
        try:
            words = (folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')
            if re.search({pattern!r}, words) and 'pathlib' not in words:
                os.kill(int(folder.name), signal.{signal})
                print(words[:150])
        except OSError:
            pass
"""
    found = kubectl("exec", pod, "--", "python", "-c", program).splitlines()
    if not found:
        raise LookupError(
            f"no process of {pod} matches {pattern}; there are: {kubectl('exec', pod, '--', 'sh', '-c', 'cat /proc/[0-9]*/cmdline', check=False)[:3000]}"
        )
    return found
