"""Logs of a run on Kubernetes: of ranks and driver from the records in storage, of nodes and operator from their pods.

Ranks and drivers print inside Ray, not to their pod; the driver records what they print within a minute, and it stays. A pod's own log is what Ray's
node says, and is there as long as the pod is.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from samite.checkpoint.records import recorded_files
from samite.engines.base import LogChoice, LogStream
from samite.engines.kuberay import names
from samite.engines.kuberay.api import POD, Document
from samite.engines.kuberay.client_records import RecordLog, submissions
from samite.engines.kuberay.client_run import ClusterRun
from samite.engines.log_lines import LineDecoder
from samite.errors import NotFoundError, SamiteError, TemporaryError
from samite.spec.lease import attempt_number

if TYPE_CHECKING:
    from samite.checkpoint import Store
    from samite.engines.kuberay.client_connection import CommandApi

OPERATOR_LABELS = {"app.kubernetes.io/name": "samite", "app.kubernetes.io/component": "operator"}


LIST_PERIOD_S = 3.0


class ClusterLogs:
    """`Logs` of one choice."""

    def __init__(
        self,
        api: "CommandApi",
        run: ClusterRun,
        choice: LogChoice,
        *,
        store: "Callable[[], Store]",
        operator_namespace: str,
        tell: Callable[[str], None],
    ) -> None:
        self._api = api
        self._run = run
        self._choice = choice
        self._open_store = store
        self._store: Store | None = None
        self._operator_namespace = operator_namespace
        self._tell = tell
        self._told = False
        self._listed_at_s = float("-inf")
        self._recorded: dict[tuple[str, str], RecordLog] = {}
        self._pods: dict[tuple[str, str], PodLog] = {}

    def streams(self, *, last: bool = False) -> list[LogStream]:
        """What there is now. Without storage, pods alone are shown, with a remark, unless only storage was asked for."""
        source = self._choice.source
        found: list[LogStream] = []
        if source in {"rank", "driver", "all"}:
            found += self._of_records(required=source != "all" and not self._recorded, anew=last)
        if source in {"node", "all"} and not self._choice.ranks:
            found += self._of_pods(self._run.namespace, {names.RUN: self._run.name}, only="")
        if source in {"operator", "supervisor"}:
            found += self._of_pods(self._operator_namespace, OPERATOR_LABELS, only=self._run.name)
        return found

    def _of_records(self, *, required: bool, anew: bool) -> list[LogStream]:
        """Listed each few seconds: the driver writes no more often."""
        now_s = time.monotonic()
        if anew or now_s - self._listed_at_s >= LIST_PERIOD_S:
            self._listed_at_s = now_s
            try:
                self._store = self._store or self._open_store()
                self._list(self._store)
            except (SamiteError, OSError) as error:
                if required:
                    raise
                if not self._told:
                    self._told = True
                    self._tell(f"logs of ranks and drivers lie in storage, which was not read: {error}")
        return list(self._recorded.values())

    def _list(self, store: "Store") -> None:
        found = submissions(store)
        chosen = self._choice.of_attempts([attempt_number(name) for name in found])
        for submission in (name for name in found if attempt_number(name) in chosen):
            files = recorded_files(store, submission)
            for name in sorted(filter(self._wants, files), key=_order):
                log = self._recorded.setdefault((submission, name), RecordLog(store, submission, name))
                log.listed(files[name])

    def _wants(self, name: str) -> bool:
        folder, _, file = name.rpartition("/")
        kind, _, number = file.removesuffix(".log").rpartition("-")
        if folder != "logs" or not file.endswith(".log"):
            return False
        if kind == "rank" and number.isdigit():
            return self._choice.source in {"rank", "all"} and (not self._choice.ranks or int(number) in self._choice.ranks)
        return self._choice.source in {"driver", "all"} and not self._choice.ranks

    def _of_pods(self, namespace: str, labels: dict[str, str], *, only: str) -> list[LogStream]:
        pods = self._api.list(POD, namespace, labels=labels).items
        found: list[LogStream] = []
        for pod in sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"])):
            for container in started_containers(pod, previous=self._choice.previous):
                key = (pod["metadata"].get("uid", pod["metadata"]["name"]), container)
                several = len(pod["spec"]["containers"]) > 1
                label = f"{pod['metadata']['name']} {container}" if several else pod["metadata"]["name"]
                name, before = pod["metadata"]["name"], self._choice.previous
                stream = PodLog(self._api, namespace, name, container, label=label, only=only, previous=before)
                found.append(self._pods.setdefault(key, stream))
        return found


class PodLog:
    """One container's log through the API server. `LogStream`."""

    def __init__(
        self, api: "CommandApi", namespace: str, pod: str, container: str, *, label: str, only: str = "", previous: bool = False
    ) -> None:
        self.label = label
        self._api = api
        self._path = f"{POD.path(namespace, pod)}/log"
        self._container = container
        self._only = only
        self._previous = previous
        self._last = ""
        self._same: set[str] = set()

    def drain(self, *, last: bool = False) -> Iterator[str]:  # noqa: ARG002 - the server's answer ends with whole lines
        """Lines since the last call. A pod that is gone, or a server that does not answer now, has nothing new to say."""
        query = {"container": self._container, "timestamps": "true"}
        query |= ({"sinceTime": self._last} if self._last else {}) | ({"previous": "true"} if self._previous else {})
        try:
            data = self._api.text(self._path, query)
        except (NotFoundError, TemporaryError):
            return
        except SamiteError as error:
            if "previous terminated container" in str(error):
                return  # the kubelet has cleared it away
            raise
        decoder = LineDecoder()
        for line in (*decoder.feed(data), *decoder.flush()):
            moment, _, text = line.partition(" ")
            # `sinceTime` counts whole seconds: what was shown of that second is left out by its full timestamp.
            if moment < self._last or (moment == self._last and line in self._same):
                continue
            if moment != self._last:
                self._last, self._same = moment, set()
            self._same.add(line)
            if self._only in text:
                yield text


def _order(name: str) -> tuple[bool, int, str]:
    """Driver first, then ranks by number."""
    number = name.removesuffix(".log").rpartition("-")[2]
    return number.isdigit(), int(number) if number.isdigit() else 0, name


def started_containers(pod: Document, *, previous: bool = False) -> list[str]:
    """Containers of a pod that have a log; with `previous`, those that ran before and were started again."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    if previous:
        started = {item["name"] for item in statuses if item.get("restartCount")}
    else:
        started = {item["name"] for item in statuses if "waiting" not in (item.get("state") or {}) or item.get("restartCount")}
    return [container["name"] for container in pod["spec"]["containers"] if container["name"] in started]
