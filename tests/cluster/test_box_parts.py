"""Parts of the box that need no cluster, no root and no tools: they are part of `make test`."""

import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from box.archives import Layer, write_archive
from box.binaries import Binaries, MissingToolError
from box.certificates import write_all
from box.components import COMPONENTS
from box.dockerfiles import bases
from box.folders import HERE, Folders
from box.processes import Started, end, start
from box.state import State
from box.waiting import until
from cryptography import x509

DOCKERFILE = """
ARG BASE=docker.io/library/debian:12-slim
ARG VERSION=3.11
FROM ${BASE} AS build
RUN true
from --platform=linux/amd64 python:$VERSION-slim as tools
FROM build
COPY --from=tools /usr/local /usr/local
FROM scratch
"""


def test_the_images_that_a_dockerfile_wants_from_outside_are_found():
    assert bases(DOCKERFILE, {}) == ["docker.io/library/debian:12-slim", "python:3.11-slim"]
    assert bases(DOCKERFILE, {"BASE": "debian:12", "VERSION": "3.13"}) == ["debian:12", "python:3.13-slim"]


def test_every_component_has_its_pins():
    for component in COMPONENTS:
        files = {file.name for file in (HERE / "gomods" / component.name).iterdir()}
        assert {"go.mod", "go.sum"} <= files, component.name


def test_a_tool_that_is_not_built_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    binaries = Binaries(Folders(tmp_path))
    monkeypatch.setattr(Binaries, "go", "1.26.0")
    assert set(binaries.missing()) == {one.name for one in COMPONENTS if not one.optional} | {"helm", "pause"}
    with pytest.raises(MissingToolError, match="make cluster-tools"):
        binaries.path("kubelet")


def test_go_and_its_age_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="no `go` in PATH"):
        Binaries(Folders(tmp_path)).missing()
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go1.22.4\n")
    old.chmod(0o755)
    with pytest.raises(MissingToolError, match=r"1\.26 or newer; `go env GOVERSION` says 1\.22\.4"):
        Binaries(Folders(tmp_path)).missing()


def test_the_state_of_a_box_survives_the_disk(tmp_path: Path):
    state = State(tmp_path / "box.json", 3, fast=True, api_port=4711, owner=Started(5, 6), tags=[("a", "b")])
    state.record("etcd", Started(7, 8))
    assert State.load(state.file) == state
    assert State.load(tmp_path / "none.json") is None
    state.file.write_text("{")
    assert State.load(state.file) is None


def test_a_process_is_ended_and_another_with_its_number_is_not(tmp_path: Path):
    process = start([sys.executable, "-c", "import time; time.sleep(60)"], log=tmp_path / "log")
    namesake = Started(process.pid, process.ticks + 1)
    assert process.alive()
    assert not namesake.alive()
    namesake.send(signal.SIGKILL)
    end([namesake], patience_s=0)
    assert process.alive()
    end([process], patience_s=0)
    assert not process.alive()


def test_the_certificates_of_a_box_are_trusted_by_its_own_authority_alone(tmp_path: Path):
    write_all(tmp_path / "pki", nodes=2, api_port=6443)
    own, other, *issued = (
        x509.load_pem_x509_certificate((tmp_path / "pki" / f"{name}.crt").read_bytes())
        for name in ("ca", "etcd-ca", "admin", "node2", "apiserver")
    )
    for certificate in issued:
        certificate.verify_directly_issued_by(own)
        with pytest.raises(ValueError, match="Issuer"):
            certificate.verify_directly_issued_by(other)
    context = ssl.create_default_context(cafile=str(tmp_path / "pki" / "ca.crt"))
    context.load_cert_chain(tmp_path / "pki" / "admin.crt", tmp_path / "pki" / "admin.key")


def test_an_archive_appears_only_when_whole_and_is_the_same_each_time(tmp_path: Path):
    content = tmp_path / "tool"
    content.write_text("tool")
    for name in ("a.tar", "b.tar"):
        write_archive(tmp_path / name, "localhost/tool:1", [Layer(files=((content, "/tool"),), folders=("opt",))], entrypoint=["/tool"])
    listed = subprocess.run(["tar", "-tf", str(tmp_path / "a.tar")], capture_output=True, text=True, check=True, timeout=20).stdout
    assert {"oci-layout", "index.json"} < set(listed.split())
    assert (tmp_path / "a.tar").read_bytes()[:4096] == (tmp_path / "b.tar").read_bytes()[:4096]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.tar", "b.tar", "tool"]


def test_a_wait_says_what_it_waited_for_and_the_last_error():
    with pytest.raises(TimeoutError, match=r"waited 0 s for rain; last: KeyError\('drop'\)"):
        until(lambda: {}["drop"], "rain", limit_s=0)
