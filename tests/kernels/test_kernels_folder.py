"""The kernels folder keeps its promises: its README runs, its package imports light and alone, its hook is optional."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import samite_kernels

FOLDER = Path(samite_kernels.__file__).resolve().parents[1]


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), flags=re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    assert "KDA backend: reference" in capsys.readouterr().out


def test_the_package_imports_nothing_heavy_but_torch() -> None:
    code = "import sys, samite_kernels.kda, samite_kernels.conv, samite_kernels.runtime.launch; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True, timeout=120)
    loaded = {name.split(".")[0] for name in run.stdout.split()}
    assert "torch" in loaded
    assert loaded & {"triton", "fla", "samite", "samite_workloads", "ray", "numpy.distutils"} <= {"triton"}


@pytest.mark.slow
def test_benches_and_device_tests_load_where_there_is_no_device() -> None:
    paths = {"PYTHONPATH": f"{FOLDER}:{FOLDER / 'gpu_tests'}:{FOLDER / 'benchmarks'}", "CUDA_VISIBLE_DEVICES": ""}
    benches = ", ".join(sorted(path.stem for path in (FOLDER / "benchmarks").glob("bench_*.py")))
    for command in (["-c", f"import {benches}"], ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "gpu_tests"]):
        run = subprocess.run(
            [sys.executable, *command], cwd=FOLDER, env=dict(os.environ) | paths, capture_output=True, text=True, check=False, timeout=200
        )
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]


def test_the_build_hook_does_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    monkeypatch.delenv("SAMITE_KERNELS_PREBUILD", raising=False)
    namespace: dict[str, object] = {"__file__": str(FOLDER / "hatch_build.py")}
    exec(compile((FOLDER / "hatch_build.py").read_text(), "hatch_build.py", "exec"), namespace)
    build_data: dict[str, object] = {"force_include": {}}
    hook = namespace["KernelsBuildHook"]
    hook.initialize(object(), "standard", build_data)  # type: ignore[attr-defined]
    assert build_data == {"force_include": {}}


def test_every_source_file_of_python_stays_below_three_hundred_lines() -> None:
    long = {str(path): count for path in FOLDER.rglob("samite_kernels/**/*.py") if (count := len(path.read_text().splitlines())) >= 300}
    assert long == {}
