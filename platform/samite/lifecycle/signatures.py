"""Messages that tell what failed, as a table: the pattern, whose fault it is, and whether it is a cause or only a consequence of another failure.

Read by `classify`. New rows come from real logs; each has a test with the line it was made for.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from samite.lifecycle.phases import FailureClass


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A known message."""

    pattern: re.Pattern[str]
    failure_class: FailureClass
    error_type: str
    consequence: bool = False
    """True: follows from another failure; only believed when nothing else is there."""


def _signature(pattern: str, failure_class: FailureClass, error_type: str, *, consequence: bool = False) -> Signature:
    return Signature(
        pattern=re.compile(pattern, re.IGNORECASE | re.MULTILINE),
        failure_class=failure_class,
        error_type=error_type,
        consequence=consequence,
    )


SIGNATURES: tuple[Signature, ...] = (
    # Words, not names: Ray's log tells of its PreemptionWatcher in every attempt.
    _signature(
        r"\bpreempt(ed|ion)\b(?![ _-]*watch)|spot (instance )?interruption|node is (being )?drain", FailureClass.PREEMPTION, "Preempted"
    ),
    _signature(
        r"cuda out of memory|torch\.(cuda\.)?outofmemoryerror|cuda error: out of memory|cublas_status_alloc_failed",
        FailureClass.OOM,
        "DeviceOutOfMemory",
    ),
    _signature(
        r"oom[- ]?kill|running low on memory|out of memory: killed|\bmemoryerror\b|cannot allocate memory"
        r"|defaultcpuallocator: can't allocate|ray\.exceptions\.outofmemoryerror",
        FailureClass.OOM,
        "HostOutOfMemory",
    ),
    _signature(r"non-?finite (loss|grad|weight|value)|(loss|gradient) is (nan|inf)", FailureClass.NUMERIC, "NonFinite"),
    _signature(
        # Only while connecting: on one machine every later error of gloo names 127.0.0.1, and rightly so.
        r"^(?=.*(gloo|nccl|c10d|tcpstore|socket))(?=.*(connectfullmesh|failed to connect|unable to connect|connection refused|timed out))"
        r"(?=.*(127\.0\.0\.1|::1\b|\blo\b|loopback|localhost))(?!.*(closed|reset) by peer)",
        FailureClass.INFRA,
        "LoopbackInterface",
    ),
    _signature(
        r"unable to resolve hostname to a \(?local\)? address|(gloo|makedevicefor).{0,120}(resolve|bind)"
        r"|name or service not known|temporary failure in name resolution|no route to host|address already in use"
        r"|no socket interface found|unable to find address for",
        FailureClass.INFRA,
        "NetworkSetup",
    ),
    _signature(
        r"\bxid\b.{0,40}\d+|uncorrectable ecc|device-side hardware|nvlink error|gpu has fallen off the bus|no cuda gpus are available",
        FailureClass.INFRA,
        "DeviceFault",
    ),
    _signature(
        r"no space left on device|disk quota exceeded|read-only file system|stale file handle|input/output error",
        FailureClass.INFRA,
        "Storage",
    ),
    _signature(
        r"watchdog.{0,80}(timeout|timed out)|collective operation timeout|timed out waiting .{0,40}(send|recv|allreduce)",
        FailureClass.HANG,
        "CollectiveTimeout",
        consequence=True,
    ),
    _signature(
        r"connection (reset|closed|refused|aborted)( by peer)?|broken pipe|connection closed by remote|socket closed"
        r"|ncclremoteerror|ncclsystemerror|remote process exited|failed to connect to .{0,60}(store|master)",
        FailureClass.INFRA,
        "PeerLost",
        consequence=True,
    ),
    _signature(
        r"actordiederror|actorunavailableerror|workercrashederror|nodediederror|ownerdiederror|actor died unexpectedly"
        r"|worker group (crashed|unhealthy|failed)|workergroup.{0,30}error|lost connection to (the )?(gcs|head|raylet)"
        r"|raylet.{0,30}(died|crashed)",
        FailureClass.INFRA,
        "RayActorLost",
        consequence=True,
    ),
)
"""Known messages, causes first. The first match of a line counts."""


WITNESSES = frozenset({"PeerLost", "PeerLostError", "CollectiveTimeout"})
"""Error types of ranks that saw another one fail: no suspects. A lost actor is a consequence too, but of its own rank's death."""

_GUESSES = re.compile(
    r"(some common causes include|there are some potential root causes|possible (causes|reasons)( include)?)\b.*", re.IGNORECASE | re.DOTALL
)
"""Where a message stops telling what happened and lists what might have. Ray ends every report of a dead worker with a list of memory, kills and crashes."""


def match(text: str) -> Signature | None:
    """The first known message in `text`, causes before consequences. What the text only supposes does not count."""
    told = _GUESSES.sub("", text)
    return next((signature for signature in SIGNATURES if signature.pattern.search(told)), None)


def first_cause(lines: Sequence[str]) -> tuple[str, Signature] | None:
    """The earliest line that names a cause; without one, the earliest that names a consequence."""
    following: tuple[str, Signature] | None = None
    for line in lines:
        signature = match(line)
        if signature is None:
            continue
        if not signature.consequence:
            return line.strip(), signature
        following = following or (line.strip(), signature)
    return following
