"""The repository tests itself: folders, names, sizes and docstrings of architecture section 4."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = {"platform": "samite", "operators": "samite_operators", "workloads": "samite_workloads", "kernels": "samite_kernels"}
PYTHON_FILES = sorted(file for folder, package in SOURCE_ROOTS.items() for file in (ROOT / folder / package).rglob("*.py"))
VAGUE_NAMES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py", "tools.py"}


def tracked(pattern: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


def test_the_platform_folder_is_no_package_because_it_would_shadow_the_standard_library():
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_tests_have_no_packages_so_that_importlib_mode_finds_them():
    assert [str(file) for file in (ROOT / "tests").rglob("__init__.py")] == []


@pytest.mark.parametrize("folder", sorted(SOURCE_ROOTS))
def test_each_source_root_holds_exactly_one_package(folder: str):
    packages = {file.parent.name for file in (ROOT / folder).glob("*/__init__.py")}
    assert packages == {SOURCE_ROOTS[folder]}
    assert (ROOT / folder / SOURCE_ROOTS[folder] / "py.typed").exists()


def test_no_module_has_a_name_that_says_nothing():
    assert [str(file) for file in PYTHON_FILES if file.name in VAGUE_NAMES] == []


@pytest.mark.parametrize("file", PYTHON_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_fits_its_room_and_says_what_it_is(file: Path):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300, "split it by named phase"
    assert ast.get_docstring(ast.parse(text)), "a module docstring says what it is, who calls it, what it leaves out"


def test_cuda_files_fit_their_room():
    too_long = [str(file) for pattern in ("*.cu", "*.cuh") for file in tracked(pattern) if len(file.read_text().splitlines()) > 600]
    assert too_long == []


def test_test_files_have_unique_names_and_at_most_500_lines():
    files = tracked("tests/**/test_*.py")
    names = [file.name for file in files]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert [str(file) for file in files if len(file.read_text().splitlines()) > 500] == []


def test_nothing_is_left_open_in_the_code():
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
    found = [str(file) for file in PYTHON_FILES if words.search(file.read_text(encoding="utf-8"))]
    assert found == []


def test_no_tracked_file_is_a_large_binary():
    assert [str(file) for file in tracked("*") if file.stat().st_size > 1_000_000 and file.name != "uv.lock"] == []
