"""What importing the spec costs: nothing heavy, and for the trainer's seam not even pydantic."""

import subprocess
import sys


def modules_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(' '.join(sorted(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return {name.partition(".")[0] for name in found.stdout.split()}


def test_the_spec_brings_nothing_heavy():
    heavy = {"torch", "ray", "kubernetes", "boto3", "fsspec", "numpy", "rich", "typer", "opentelemetry"}
    assert modules_after("from samite.spec import TrainingRun, load_run, LoadedRun").isdisjoint(heavy)


def test_the_attempt_seam_needs_no_pydantic():
    assert modules_after("import samite.spec.attempt").isdisjoint({"pydantic", "yaml"})


def test_the_commands_load_nothing_before_they_run():
    code = "import samite.cli.validate, samite.cli.explain, samite.cli.schema"
    assert modules_after(code).isdisjoint({"pydantic", "yaml", "rich"})


def test_importing_the_models_builds_no_validator():
    code = "from samite.spec import TrainingRun\nassert not TrainingRun.__pydantic_complete__"
    assert "pydantic" in modules_after(code)
