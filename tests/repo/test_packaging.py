"""One distribution: what the lock names, what plain pip brings, and what the wheel holds."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_lock_names_only_the_public_registry():
    hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text(encoding="utf-8")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_every_dependency_has_a_floor_or_a_pin():
    groups = [
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    ]
    without = [line for group in groups for line in group if isinstance(line, str) and ">=" not in line and "==" not in line]
    assert without == []


def test_the_version_stands_in_one_place_and_its_copy():
    from samite import __version__

    assert PROJECT["project"]["version"] == __version__


def test_the_light_distribution_needs_neither_torch_nor_ray_nor_kopf():
    names = {re.split(r"[\[<>=!]", line)[0] for line in PROJECT["project"]["dependencies"]}
    assert names.isdisjoint({"torch", "ray", "kopf", "triton", "numpy", "s3fs"})


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_plain_pip_installs_the_light_set_and_the_command_runs(tmp_path: Path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=60)
    subprocess.run([str(venv / "bin" / "pip"), "install", "--quiet", str(ROOT)], check=True, timeout=400, cwd=tmp_path)
    listed = subprocess.run(
        [str(venv / "bin" / "pip"), "list", "--format=freeze"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    installed = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert "samite" in installed
    assert installed.isdisjoint({"torch", "ray", "kopf", "triton"})
    shown = subprocess.run([str(venv / "bin" / "samite"), "version"], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)
    assert PROJECT["project"]["version"] in shown.stdout


@pytest.mark.timeout(120)
def test_the_wheel_holds_the_four_packages_and_nothing_else(tmp_path: Path):
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not in this environment (made without `make setup`)")
    subprocess.run([str(uv), "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(ROOT)], check=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"samite", "samite_operators", "samite_workloads", "samite_kernels"}
