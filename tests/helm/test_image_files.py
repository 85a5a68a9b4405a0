"""The two Dockerfiles as files: pinned, non-root, labelled, and alike where they must be. Built for real in tests/cluster/test_container_images.py."""

import re
from pathlib import Path

import pytest

from samite import __version__

ROOT = Path(__file__).parents[2]
FILES = {"operator": ROOT / "operators" / "Dockerfile", "worker": ROOT / "workloads" / "Dockerfile"}
LABELS = {"title", "description", "source", "documentation", "licenses", "version", "revision"}


@pytest.fixture(params=FILES, ids=str)
def dockerfile(request: pytest.FixtureRequest) -> str:
    return FILES[request.param].read_text(encoding="utf-8")


def test_the_user_is_a_number_and_not_root(dockerfile: str):
    """Kubernetes can tell that a number is not root; a name it must refuse under the restricted standard."""
    users = re.findall(r"^USER (\d+):(\d+)$", dockerfile, re.MULTILINE)
    assert users
    assert all(int(user) > 0 and int(group) > 0 for user, group in users)


def test_the_work_folder_is_not_the_repository_and_not_on_the_import_path(dockerfile: str):
    final = dockerfile.rsplit("\nFROM ", 1)[1]
    assert "WORKDIR /home/samite" in final
    assert "/source" not in final
    assert "PYTHONSAFEPATH=1" in dockerfile


def test_everything_that_is_installed_is_pinned(dockerfile: str):
    assert re.findall(r"^ARG BASE=(\S+)$", dockerfile, re.MULTILINE) == ["docker.io/library/debian:12-slim"]
    assert ":latest" not in dockerfile
    assert all("--frozen" in line for line in re.findall(r"uv sync.*", dockerfile))
    installs = re.findall(r"pip install [^\\\n]*", dockerfile)
    assert all("--require-hashes" in line or "--no-deps" in line for line in installs), installs


def test_both_files_pin_the_same_uv_by_hash():
    pins = [re.findall(r"uv==\S+|sha256:[0-9a-f]{64}", file.read_text(encoding="utf-8")) for file in FILES.values()]
    assert pins[0] == pins[1]
    assert len(pins[0]) == 3


def test_the_image_says_what_it_is(dockerfile: str):
    assert set(re.findall(r"org\.opencontainers\.image\.(\w+)=", dockerfile)) == LABELS
    assert f"ARG VERSION={__version__}" in dockerfile


def test_only_what_the_images_are_built_from_is_sent_to_the_builder():
    texts = {file.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8") for file in FILES.values()}
    assert len(texts) == 1
    (text,) = texts
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    copied = {
        name
        for file in FILES.values()
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", file.read_text(), re.MULTILINE)
        for name in line.split()
    }
    assert copied == {line[1:] for line in lines if line.startswith("!")}


def test_chart_images_and_versions_are_those_of_the_package():
    import yaml

    chart = yaml.safe_load((ROOT / "helm" / "samite" / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__
    images = {entry["name"]: entry["image"] for entry in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}
    assert images == {name: f"ghcr.io/samite-dev/{name}:{__version__}" for name in FILES}
