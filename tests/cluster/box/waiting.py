"""Waiting with a limit: every wait of the box and its tests goes through here."""

import time
from collections.abc import Callable


def until(met: Callable[[], object], what: str, *, limit_s: float, every_s: float = 0.25) -> float:
    """Ask `met` until its answer is true and return the seconds it took; TimeoutError says `what` was waited for and the last error, if any.

    Errors of `met` that are an OSError, RuntimeError, ValueError or LookupError count as "not yet": a cluster that starts refuses connections and answers half.
    """
    begun_s = time.monotonic()
    problem: Exception | None = None
    while True:
        try:
            if met():
                return time.monotonic() - begun_s
            problem = None
        except (OSError, RuntimeError, ValueError, LookupError) as error:
            problem = error
        if time.monotonic() - begun_s > limit_s:
            raise TimeoutError(f"waited {limit_s:.0f} s for {what}" + (f"; last: {problem!r}" if problem else ""))
        time.sleep(every_s)
