"""The build of the CUDA sources: one build for many waiters, locks that die with their holder, nothing half-written, real nvcc."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from samite_kernels.runtime import build

ROOT = Path(build.__file__).resolve().parents[2]
RESOURCES = ROOT / "benchmarks" / "resources.json"
ASK = "from samite_kernels.runtime.build import library_path; print(library_path())"
FAKE_NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo fake 1.0; exit 0; fi
echo build >> "$FAKE_LOG"
while [ "$1" != -o ]; do shift; done
printf half > "$2"
sleep "${FAKE_SLEEP_S:-0}"
if [ -n "$FAKE_FAIL" ]; then echo "error: no space left on device" >&2; exit 2; fi
printf whole > "$2"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A fake compiler, a cache of its own, and no prebuilt library that fits."""
    compiler = tmp_path / "nvcc"
    compiler.write_text(FAKE_NVCC)
    compiler.chmod(0o755)
    # A copy of the sources with one more line, so that a library prebuilt for the real ones isn't found.
    package = tmp_path / "package" / "samite_kernels"
    subprocess.run(["cp", "-r", str(ROOT / "samite_kernels"), str(package.parent.mkdir() or package)], check=True)
    with (package / "csrc" / "sm90_errors.cu").open("a") as file:
        file.write("// another digest\n")
    own = {"SAMITE_NVCC": str(compiler), "SAMITE_KERNELS_CACHE": str(tmp_path / "cache"), "FAKE_LOG": str(tmp_path / "log")}
    return dict(os.environ) | own | {"PYTHONPATH": str(package.parent)}


def ask(environment: dict[str, str], **more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ASK]
    return subprocess.Popen(
        command, env=environment | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def result(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return Path(out.strip()).read_text()


def wait_for_build(environment: dict[str, str], count: int = 1) -> None:
    deadline = time.monotonic() + 30
    log = Path(environment["FAKE_LOG"])
    while not log.exists() or log.read_text().count("build") < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_eight_ranks_at_once_build_once_and_see_the_whole_library(environment: dict[str, str]) -> None:
    ranks = [ask(environment, FAKE_SLEEP_S="1") for _ in range(8)]
    assert [result(rank) for rank in ranks] == ["whole"] * 8
    assert Path(environment["FAKE_LOG"]).read_text().count("build") == 1


def test_a_killed_builder_leaves_no_lock_behind(environment: dict[str, str]) -> None:
    builder = ask(environment, FAKE_SLEEP_S="60")
    wait_for_build(environment)
    waiter = ask(environment)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.communicate()
    assert result(waiter) == "whole"
    assert Path(environment["FAKE_LOG"]).read_text().count("build") == 2


def test_a_stopped_builder_is_named_when_the_wait_ends(environment: dict[str, str]) -> None:
    builder = ask(environment, FAKE_SLEEP_S="60")
    wait_for_build(environment)
    os.killpg(builder.pid, signal.SIGSTOP)
    waiter = ask(environment, SAMITE_KERNELS_BUILD_WAIT_S="1")
    _, err = waiter.communicate(timeout=60)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.communicate()
    assert waiter.returncode != 0
    assert f"process {builder.pid} on" in err
    assert "SAMITE_KERNELS_BUILD_WAIT_S" in err


def test_a_failed_build_leaves_nothing_and_shows_the_compilers_words(environment: dict[str, str]) -> None:
    _, err = ask(environment, FAKE_FAIL="1").communicate(timeout=60)
    assert "no space left on device" in err
    assert not [path for path in Path(environment["SAMITE_KERNELS_CACHE"]).rglob("*") if path.suffix == ".so"]
    assert result(ask(environment)) == "whole"


def refused(environment: dict[str, str], **more: str) -> str:
    """The last line of a build that must fail with our own error, and soon."""
    process = ask(environment, **more)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "BuildError" in err
    return err[err.index("BuildError") :]


def library_of(environment: dict[str, str]) -> Path:
    return Path(ask(environment).communicate(timeout=60)[0].strip())


def test_what_a_killed_builder_left_half_written_is_removed_by_the_next(environment: dict[str, str]) -> None:
    builder = ask(environment, FAKE_SLEEP_S="60")
    wait_for_build(environment)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.communicate()
    cache = Path(environment["SAMITE_KERNELS_CACHE"])
    assert [path.read_text() for path in cache.rglob(".build-*/*")] == ["half"]
    assert result(ask(environment)) == "whole"
    assert not list(cache.rglob(".build-*"))


def test_a_lock_file_without_a_holder_stops_nobody(environment: dict[str, str]) -> None:
    library = library_of(environment)
    library.unlink()
    library.with_name(f"{library.name}.lock").write_text("process 1 on a machine that is no more")
    assert result(ask(environment, SAMITE_KERNELS_BUILD_WAIT_S="0")) == "whole"


@pytest.mark.parametrize("cache", ["/proc/samite", "/dev/null/samite"])
def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(environment: dict[str, str], cache: str) -> None:
    message = refused(environment, SAMITE_KERNELS_CACHE=cache)
    assert cache in message
    assert "Name a writable local folder" in message


def test_a_library_in_a_cache_that_cannot_be_written_is_used(environment: dict[str, str]) -> None:
    library = library_of(environment)
    library.with_name(f"{library.name}.lock").unlink()
    library.parent.chmod(0o555)
    assert result(ask(environment)) == "whole"
    assert not library.with_name(f"{library.name}.lock").exists()


def test_a_full_disk_is_said_before_the_compiler_runs(environment: dict[str, str]) -> None:
    library = library_of(environment)
    library.unlink()
    lock = library.with_name(f"{library.name}.lock")
    lock.unlink()
    lock.symlink_to("/dev/full")
    assert str(library.parent) in refused(environment)
    assert Path(environment["FAKE_LOG"]).read_text().count("build") == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "which is no file"),
        ("#!/bin/sh\nexit 3\n", "--version failed with code 3"),
        ("#!/nowhere/sh\n", "can't be run"),
        (
            '#!/bin/sh\nif [ "$1" = --version ]; then echo old; exit 0; fi\necho "Unsupported gpu architecture \'compute_90a\'" >&2; exit 1\n',
            "compute_90a",
        ),
        ('#!/bin/sh\nif [ "$1" = --version ]; then echo lazy; fi\nexit 0\n', "failed with code 0"),
    ],
)
def test_a_wrong_compiler_is_named(environment: dict[str, str], tmp_path: Path, script: str | None, words: str) -> None:
    compiler = tmp_path / "wrong"
    if script is not None:
        compiler.write_text(script)
        compiler.chmod(0o755)
    message = refused(environment, SAMITE_NVCC=str(compiler))
    assert str(compiler) in message
    assert words in message


def test_without_a_home_code_is_loaded_from_no_folder_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    for name in ("SAMITE_KERNELS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(tmp_path))
    mine = tmp_path / f"samite-kernels-{os.getuid()}"
    assert build._cache_folder() == mine
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o777)
    with pytest.raises(build.BuildError, match="is not a folder of user"):
        build._cache_folder()
    mine.rmdir()
    mine.symlink_to(tmp_path)
    with pytest.raises(build.BuildError, match="is not a folder of user"):
        build._cache_folder()
    mine.unlink()
    mine.write_text("")
    with pytest.raises(build.BuildError, match="Without a home"):
        build._cache_folder()


@pytest.mark.parametrize("wait", ["soon", "-1", "nan", "inf"])
def test_a_wait_that_is_no_time_is_refused(environment: dict[str, str], wait: str) -> None:
    assert "must be a number of seconds" in refused(environment, SAMITE_KERNELS_BUILD_WAIT_S=wait)


def test_a_damaged_library_is_named_when_it_is_loaded(environment: dict[str, str]) -> None:
    library = library_of(environment)
    library.write_text("")
    code = "import torch; from samite_kernels.runtime import launch; launch._library(None)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert "LaunchError" in done.stderr
    assert f"{library} can't be loaded" in done.stderr
    assert "remove it" in done.stderr


def test_other_sources_get_another_library(environment: dict[str, str]) -> None:
    first = ask(environment).communicate(timeout=60)[0]
    with (Path(environment["PYTHONPATH"]) / "samite_kernels" / "csrc" / "sm90_errors.cu").open("a") as file:
        file.write("// version two\n")
    second = ask(environment).communicate(timeout=60)[0]
    assert first != second


def test_a_prebuilt_library_is_taken_before_any_compiler(environment: dict[str, str]) -> None:
    script = "from samite_kernels.runtime import build; print(build.build_into(build.PREBUILT_FOLDER))"
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)
    out, _ = ask(environment | {"SAMITE_NVCC": "/nowhere"}).communicate(timeout=60)
    assert "/prebuilt/" in out


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Registers, spills and static shared memory of every kernel, from a real build for sm_90a."""
    try:
        compiler = build.find_compiler()
    except build.BuildError as missing:
        pytest.skip(str(missing))
    report = build.compile_library(compiler, tmp_path_factory.mktemp("nvcc") / "library.so")
    return build.resources(report)


@pytest.mark.slow
def test_every_kernel_builds_for_hopper_without_spills(compiled: dict[str, dict[str, int]]) -> None:
    assert set(json.loads(RESOURCES.read_text())) == set(compiled)
    assert {name: kernel["spill_bytes"] for name, kernel in compiled.items() if kernel["spill_bytes"]} == {}


@pytest.mark.slow
def test_registers_stay_as_recorded(compiled: dict[str, dict[str, int]]) -> None:
    recorded = json.loads(RESOURCES.read_text())
    grown = {name: (recorded[name], kernel) for name, kernel in compiled.items() if kernel["registers"] > recorded[name]["registers"]}
    assert grown == {}, "more registers than benchmarks/resources.json records: look why, then record again"


def test_argument_blocks_mirror_the_sources() -> None:
    from samite_kernels.conv import qkv_sm90, sm90
    from samite_kernels.kda import decode_sm90, sm90_launch
    from samite_kernels.residual.sm90 import ResidualArguments
    from samite_kernels.router.sm90 import RouterArguments

    header = (build.SOURCE_FOLDER / "include" / "arguments.cuh").read_text()
    blocks = re.findall(r"struct (\w+Arguments) \{(.*?)\n\};", header, flags=re.DOTALL)
    assert len(blocks) == 10
    pairs = [(body, getattr(sm90_launch, name)) for name, body in blocks]
    pairs.append((arguments_of("sm90_short_conv.cu"), sm90.ConvArguments))
    pairs.append((arguments_of("sm90_short_conv_qkv.cu"), qkv_sm90.QkvArguments))
    pairs.append((arguments_of("sm90_router.cu"), RouterArguments))
    pairs.append((arguments_of("include/residual.cuh"), ResidualArguments))
    pairs.append((arguments_of("sm90_kda_decode.cu"), decode_sm90.DecodeArguments))
    for body, block in pairs:
        assert mirrored(body) == [(name, layout_of(kind)) for name, kind in block._fields_], block


def arguments_of(source: str) -> str:
    (body,) = re.findall(r"struct Arguments \{(.*?)\n\};", (build.SOURCE_FOLDER / source).read_text(), flags=re.DOTALL)
    return body


def mirrored(body: str) -> list[tuple[str, tuple[str, int]]]:
    """Fields of a struct with their ctypes name and how many they are; named lengths count the streams or sources of their kernel."""
    lengths = {"": 1, "[kStreams]": 3, "[kMaxSources]": 16}
    kinds = {"int32_t": "c_int", "int64_t": "c_long", "float": "c_float"}
    fields = re.findall(r"^    (?:const )?([\w: ]+?)(\*?) (\w+)(\[\w+\])?;", body, flags=re.MULTILINE)
    return [(name, ("c_void_p" if pointer else kinds[kind], lengths[length])) for kind, pointer, name, length in fields]


def layout_of(kind: type) -> tuple[str, int]:
    return (kind._type_.__name__, kind._length_) if hasattr(kind, "_length_") else (kind.__name__, 1)


def test_no_source_includes_torch_and_none_is_too_long() -> None:
    for path in build.sources():
        text = path.read_text()
        assert "torch/" not in text, path
        assert text.count("\n") <= 300, path
        assert path.suffix == ".cuh" or path.name.startswith("sm90_"), path
