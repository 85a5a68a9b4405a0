"""A rank under a number that no one has (scenario S9): no entry in passwd, no HOME, umask 077, a read-only root; only its run folder and TMPDIR are writable."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from samite.spec.attempt import AttemptResult, AttemptSpec

UID = 1002700000


def can_become() -> bool:
    """Whether this test may have a mount namespace and become somebody else."""
    if os.geteuid() != 0 or not (shutil.which("setpriv") and shutil.which("unshare")):
        return False
    tried = ("unshare", "--mount", "mount", "-o", "remount,ro,bind", "/")
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.timeout(240)
def test_a_rank_trains_and_saves_under_a_number_without_a_name(new_attempt: Callable[..., AttemptSpec], tmp_path: Path):
    if not can_become():
        pytest.skip("needs root, setpriv, and a mount namespace whose root can be made read-only")
    attempt = new_attempt()
    own, home = tmp_path / "tmp", Path(attempt.run_folder)
    own.mkdir()
    file = home / "attempts" / attempt.submission_id / "attempt.json"
    attempt.write(file)
    for place in (own, home, *home.rglob("*")):
        os.chown(place, UID, UID)
    writable = " && ".join(f"mount --bind {place} {place} && mount -o remount,rw,bind {place}" for place in (own, home))
    # Reading is allowed everywhere, as in an image; writing is not, whoever owns the place.
    become = f"exec setpriv --reuid={UID} --regid={UID} --clear-groups --inh-caps=-all,+dac_read_search --ambient-caps=+dac_read_search"
    line = f'{writable} && mount -o remount,ro,bind / && umask 077 && {become} "$@"'
    program = (sys.executable, "-m", "samite_workloads.entrypoint", "--attempt", str(file), "--device", "cpu")
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(own), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", line, "sh", *program],
        env=environment, cwd="/", capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    result = AttemptResult.read(home / "attempts" / attempt.submission_id / "result.json")
    assert result.outcome == "stage_complete"
    assert result.checkpoint_id
    assert {path.stat().st_uid for path in home.rglob("*.json")} == {UID}
