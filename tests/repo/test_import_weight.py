"""The control plane stays light: what importing it brings along, and what `samite --help` costs."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "triton", "kopf", "samite_workloads", "samite_kernels")


def imported_by(code: str) -> set[str]:
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(found.stdout.splitlines()[-1]))


def modules_of(folder: str, package: str) -> list[str]:
    files = (ROOT / folder / package).rglob("*.py")
    names = {".".join(file.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__") for file in files}
    return sorted(name for name in names if not name.endswith("__main__"))


def test_no_module_of_the_control_plane_imports_anything_heavy():
    code = "\n".join(f"import {name}" for name in modules_of("platform", "samite"))
    assert imported_by(code).isdisjoint(HEAVY)


def test_the_operator_package_imports_neither_torch_nor_ray():
    code = "\n".join(f"import {name}" for name in modules_of("operators", "samite_operators"))
    assert imported_by(code).isdisjoint({"torch", "ray", "samite_workloads", "samite_kernels"})


def test_kernels_import_nothing_of_ours():
    assert imported_by("import samite_kernels").isdisjoint({"samite", "samite_operators", "samite_workloads"})


def test_the_driver_of_a_ray_job_and_the_controller_start_without_torch():
    # Both load these modules at every attempt; torch would cost each of them 3 s on the way from a failure to the next step.
    assert "torch" not in imported_by("import samite_workloads.train.ray_driver, samite_workloads.train.ray_worker")


def test_a_rank_does_not_load_the_compiler_to_become_deterministic():
    code = """
import sys, torch
from samite_workloads.train.ranks import plain_facts
from samite_workloads.train.session import make_deterministic
make_deterministic(plain_facts(device_type="cpu"), 7)
assert torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
assert "torch._dynamo" not in sys.modules and "torch._inductor" not in sys.modules
"""
    assert "torch" in imported_by(code)


@pytest.mark.parametrize("library", ["pydantic", "yaml", "rich", "boto3", "kubernetes", "opentelemetry", "fsspec"])
def test_the_command_line_loads_no_library_before_it_needs_one(library: str):
    assert library not in imported_by("import samite.cli.app")


def test_help_answers_within_300_ms_of_processor_time():
    def cost_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "samite", "--help"], capture_output=True, check=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The least of three: other work on the machine only ever adds.
    assert min(cost_s() for _ in range(3)) < 0.3
