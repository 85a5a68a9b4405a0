"""Progress of long work on stderr: one line that redraws itself on a terminal, a plain line every ten seconds elsewhere."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from samite.cli.output import size

_PLAIN_EVERY_S = 10.0
_REDRAW_EVERY_S = 0.1


@contextlib.contextmanager
def progress_lines(verb: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A function that is told each portion of bytes, from any thread. Says nothing if `total_bytes` is 0 or `--quiet` was given."""
    quiet = total_bytes == 0 or os.environ.get("SAMITE_QUIET", "") not in {"", "0"}
    live = sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
    lock = threading.Lock()
    began_s = shown_s = time.monotonic()
    done = 0

    def tell(num_bytes: int) -> None:
        nonlocal done, shown_s
        with lock:
            done += num_bytes
            now_s = time.monotonic()
            if quiet or now_s - shown_s < (_REDRAW_EVERY_S if live else _PLAIN_EVERY_S):
                return
            shown_s = now_s
            rate = done / max(now_s - began_s, 1e-6)
            rest_s = max(total_bytes - done, 0) / max(rate, 1.0)
            text = f"{verb} {size(done)} of {size(total_bytes)}, {size(rate)}/s, {rest_s:.0f} s left"
            sys.stderr.write(f"\r\x1b[K{text}" if live else f"{text}\n")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if live and not quiet:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
