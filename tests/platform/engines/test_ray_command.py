"""How Ray's nodes are started: short socket paths wherever TMPDIR points (scenario S2), no foreign cluster, no fixed port, no secret in a command."""

import importlib.util
import shutil
import tempfile
from pathlib import Path

import pytest

from samite.engines.local.folder import RunFolder
from samite.engines.local.ray_command import (
    MAX_TEMPORARY_BASE,
    free_ports,
    head_command,
    ray_environment,
    short_temporary_folder,
    worker_command,
)
from samite.engines.local.ray_nodes import RayNodes

LONGEST_SESSION = "session_2026-11-30_16-45-33_602748_4194304"


@pytest.mark.parametrize("name", ["x" * 150, "with space", "ü", "plain"])
def test_socket_paths_fit_the_kernel_wherever_tmpdir_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    place = tmp_path / name
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    folder = short_temporary_folder()
    try:
        longest = f"{folder}/node-99999/{LONGEST_SESSION}/sockets/plasma_store"
        assert len(longest.encode()) <= 107
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        shutil.rmtree(folder)


def test_the_allowed_base_leaves_room_for_the_longest_socket():
    longest = f"{'b' * MAX_TEMPORARY_BASE}/smt-12345678/node-99999/{LONGEST_SESSION}/sockets/plasma_store"
    assert len(longest) <= 107


def test_the_head_runs_no_rank_and_only_the_machine_itself_reaches_its_dashboard():
    command = head_command(gcs_port=1, dashboard_port=2, client_port=3, temporary_folder="/tmp/smt-x")
    assert "--num-cpus=0" in command
    assert "--dashboard-host=127.0.0.1" in command
    assert "--temp-dir=/tmp/smt-x/head" in command


def test_two_nodes_share_neither_address_nor_folder():
    first = worker_command(name="n0", address="127.0.0.2", gcs_port=1, gpus=0, temporary_folder="/tmp/smt-x")
    second = worker_command(name="n1", address="127.0.0.3", gcs_port=1, gpus=0, temporary_folder="/tmp/smt-x")
    differing = {a.partition("=")[0] for a, b in zip(first, second, strict=True) if a != b}
    assert differing == {"--node-ip-address", "--temp-dir"}


def test_a_foreign_cluster_in_the_environment_is_never_joined():
    environment = ray_environment(
        {"RAY_ADDRESS": "ray://elsewhere:10001", "RAY_AUTH_TOKEN": "theirs", "PATH": "/bin", "AWS_PROFILE": "mine"}
    )
    assert "RAY_ADDRESS" not in environment
    assert "RAY_AUTH_TOKEN" not in environment
    assert (environment["RAY_AUTH_MODE"], environment["PATH"], environment["AWS_PROFILE"]) == ("token", "/bin", "mine")


def test_worker_nodes_begin_to_load_what_ranks_need_and_the_head_does_not(tmp_path: Path):
    folder = RunFolder(tmp_path / "demo")
    folder.create()
    nodes = RayNodes(folder, run_uid="u")
    preloaded = nodes._environment("n0")["RAY_preload_python_modules"].split(",")
    assert all(importlib.util.find_spec(name) is not None for name in preloaded)  # Ray only logs a name it does not find
    assert "RAY_preload_python_modules" not in nodes._environment("head")


def test_the_token_is_in_a_private_file_and_in_no_command_line(tmp_path: Path):
    folder = RunFolder(tmp_path / "demo")
    folder.create()
    nodes = RayNodes(folder, run_uid="u")
    nodes._write_token()
    token = (folder.path / "ray.token").read_text().strip()
    assert len(token) == 64
    assert (folder.path / "ray.token").stat().st_mode & 0o077 == 0
    command = head_command(gcs_port=1, dashboard_port=2, client_port=3, temporary_folder="/tmp/smt-x")
    assert not any(token in word for word in command)


def test_free_ports_differ():
    assert len(set(free_ports(50))) == 50
