"""Programs under a number that no one has (scenario S9): no entry in passwd, no HOME, umask 077, one writable folder. Restricted clusters do that to pods."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UID = 1002700000
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to become somebody else"
)


def as_nobody(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Python with `words` as user `UID`. It may read every file, as in an image, and write to `folder` alone."""
    folder.mkdir(exist_ok=True)
    os.chown(folder, UID, UID)
    become = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all,+dac_read_search")
    plain = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "SAMITE_NO_INPUT": "1"}
    command = [*become, "--ambient-caps=+dac_read_search", "sh", "-c", 'umask 077; exec "$@"', "sh", sys.executable, *words]
    return subprocess.run(command, env=plain | environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in (tmp_path, *tmp_path.parents):
        if part.stat().st_uid == os.geteuid() and part.name.startswith(("pytest-", "test_")):
            part.chmod(0o711)
    return tmp_path / "own"


def test_the_command_line_says_what_it_needs_and_works_with_it(folder: Path):
    without = as_nobody(folder, "-m", "samite", "list")
    assert without.returncode == 2, without.stderr
    assert f"user {UID} has no home folder" in without.stderr
    assert "Traceback" not in without.stderr
    done = as_nobody(folder, "-m", "samite", "list", SAMITE_HOME=str(folder / "home"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [("-m", "samite", "--help"), ("-m", "samite", "version"), ("-m", "samite", "schema")])
def test_what_needs_no_home_needs_none(folder: Path, words: tuple[str, ...]):
    done = as_nobody(folder, *words)
    assert done.returncode == 0, done.stderr


def test_a_kubeconfig_is_looked_for_where_it_is_named(folder: Path):
    done = as_nobody(folder, "-m", "samite", "--context", "prod", "list", SAMITE_HOME=str(folder / "home"))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    done = as_nobody(folder, "-m", "samite", "--context", "prod", "list", KUBECONFIG=str(folder / "config"))
    assert "no cluster is configured" in done.stderr


def test_the_operator_starts_as_far_as_its_settings(folder: Path):
    done = as_nobody(folder, "-m", "samite_operators", SAMITE_TURN_SECONDS="soon")
    assert done.returncode == 2, done.stderr
    assert "SAMITE_TURN_SECONDS" in done.stderr


def test_compiled_kernels_have_a_place(folder: Path):
    pytest.importorskip("samite_kernels")
    program = "from samite_kernels.runtime.build import _cache_folder; print(_cache_folder())"
    assert as_nobody(folder, "-c", program).stdout.strip() == f"{folder}/samite-kernels-{UID}"
    assert as_nobody(folder, "-c", program, HOME=str(folder)).stdout.strip() == f"{folder}/.cache/samite/kernels"
