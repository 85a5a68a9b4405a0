"""What holds for every test: temporary files of libraries end with the session, and a child process can be interrupted however the suite was started."""

import multiprocessing.util
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a temporary folder of its own, and let Ctrl-C mean something again.

    A shell starts background jobs (`make test &`, nohup, many CI runners) with SIGINT ignored, which every process below inherits; a handler
    set here is what exec resets to the default, so the command lines under test see the signal as they do in a terminal.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return  # one of xdist's workers: it inherits the folder of its controller
    base = tempfile.gettempdir()
    # Short, because sockets live below it. pytest keeps its own folders of the last runs where it always does.
    folder = Path(tempfile.mkdtemp(prefix="st-", dir=base))
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", base)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    # Below -100, so after multiprocessing has removed what it keeps there itself.
    multiprocessing.util.Finalize(None, shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, exitpriority=-200)
