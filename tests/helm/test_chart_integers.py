"""Large numbers in values (scenario S3): plain digits wherever they come out, however they were given. YAML files make floats of them on the way."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart import CHART, MONITORING, NAMESPACE, Helm

VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
EXPONENT = re.compile(r"\b\d+(?:\.\d+)?[eE]\+?\d+\b")
LARGE = {"a mebi": 1048576, "more than 32 bits": 5368709120}
NOT_RENDERED = {"operator.replicas", "limits.maxCordonFraction"}
"""Always 1, and a share."""
EXTRA = (
    "runtimes.items[0].spec.objectStoreBytes",
    "runtimes.items[0].spec.worker.terminationGracePeriodSeconds",
    "operator.tolerations[0].tolerationSeconds",
    "extraObjects[0].spec.number",
)
"""Numbers inside parts that the chart passes on."""


def numbers(values: Any, path: str = "") -> list[str]:
    """Where values.yaml holds a number, as `--set` names it."""
    if isinstance(values, dict):
        return [found for key, value in values.items() for found in numbers(value, f"{path}.{key}".lstrip("."))]
    if isinstance(values, list):
        return [found for index, value in enumerate(values) for found in numbers(value, f"{path}[{index}]")]
    return [path] if isinstance(values, int | float) and not isinstance(values, bool) else []


BESIDE = (
    "runtimes.items[0].name=default",
    "operator.tolerations[0].operator=Exists",
    "extraObjects[0].apiVersion=v1",
    "extraObjects[0].kind=Thing",
    "extraObjects[0].metadata.name=thing",
)
"""What these parts need beside the number."""


WANTED = [path for path in (*numbers(VALUES), *EXTRA) if path not in NOT_RENDERED]


def document(settings: dict[str, int]) -> dict[str, Any]:
    """The same settings as a values file."""
    found: dict[str, Any] = {}
    for path, number in settings.items():
        here: Any = found
        *inner, last = (int(word) if word.isdigit() else word for word in re.split(r"[.\[\]]+", path) if word)
        for word in inner:
            here = here.setdefault(word, {})
        here[last] = number
    return _with_lists(found)


def _with_lists(part: Any) -> Any:
    """Maps from 0, 1, ... become lists."""
    if not isinstance(part, dict):
        return part
    inner = {key: _with_lists(value) for key, value in part.items()}
    return list(inner.values()) if all(isinstance(key, int) for key in inner) else inner


@pytest.fixture(scope="module", params=LARGE)
def settings(request: pytest.FixtureRequest) -> dict[str, int]:
    """A number of its own for each place, so that each can be found again."""
    return {path: LARGE[request.param] + index for index, path in enumerate(WANTED)}


def rendered(helm: Helm, *arguments: str) -> str:
    """The chart with everything on, past the schema's bounds: the templates are looked at here."""
    on = (
        'storage.secretNames=["keys"]',
        'monitoring={"serviceMonitor": true, "podMonitor": true, "prometheusRule": true}',
        'telemetry.otlp.endpoint="http://collector:4317"',
        "kueue.enabled=true",
        "operator.podDisruptionBudget=true",
    )
    words = [part for item in on for part in ("--set-json", item)]
    base = ("template", "samite", str(CHART), "--namespace", NAMESPACE, "--skip-schema-validation", "--api-versions", MONITORING)
    done = helm.run(*base, *words, *arguments)
    assert done.returncode == 0, done.stderr
    # The definitions are generated and hold no value, and comments are for people.
    kept = (part for part in done.stdout.split("\n---\n") if "kind: CustomResourceDefinition" not in part)
    return "\n".join(line for part in kept for line in part.splitlines() if not line.lstrip().startswith("#"))


def check(text: str, settings: dict[str, int]) -> None:
    assert [line.strip() for line in text.splitlines() if EXPONENT.search(line)] == []
    assert [path for path, number in settings.items() if str(number) not in text] == []


def test_numbers_of_a_values_file_stay_digits(helm: Helm, settings: dict[str, int], tmp_path: Path):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(document(settings)), encoding="utf-8")
    check(rendered(helm, "--values", str(file), *(word for item in BESIDE for word in ("--set", item))), settings)


def test_numbers_of_the_command_line_stay_digits(helm: Helm, settings: dict[str, int]):
    words = [*BESIDE, *(f"{path}={number}" for path, number in settings.items())]
    check(rendered(helm, *(word for item in words for word in ("--set", item))), settings)


@pytest.mark.parametrize("path", ["operator.image.tag", "worker.image.tag"])
def test_a_tag_that_is_a_number_is_refused_or_stays_digits(helm: Helm, path: str):
    number = helm.run("template", "samite", str(CHART), "--set", f"{path}=20161216")
    assert number.returncode != 0
    assert "tag" in number.stderr
    text = helm.run("template", "samite", str(CHART), "--set-string", f"{path}=20161216")
    assert text.returncode == 0, text.stderr
    assert ":20161216" in text.stdout
