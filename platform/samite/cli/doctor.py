"""`samite doctor`: is this machine, or the cluster that was named, fit to run, and if not, what to do.

Every check says what it looked at; exit 13 if one fails. A warning is worth knowing and no obstacle.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from samite.cli.output import Column, OutputFormat, OutputOption, YesOption, print_items

EXIT_PROBLEMS = 13
MIN_FREE_BYTES = 2 << 30
MIN_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Outcome of one check. `ok` None: could not be told, which is not a problem."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""
    warn: bool = False
    """With `ok` True: it works, and yet something ought to be done."""

    @property
    def level(self) -> str:
        """ok, warn, FAIL, or unknown."""
        return "unknown" if self.ok is None else "FAIL" if not self.ok else "warn" if self.warn else "ok"


def register(app: typer.Typer) -> None:
    """Add `doctor`."""
    app.command()(doctor)


def doctor(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="Also look at this run's storage and supervisor.", show_default=False)] = "",
    fix_finalizers: Annotated[
        bool,
        typer.Option("--fix-finalizers", help="On Kubernetes: free runs whose deletion is stuck because no operator answers. Asks first."),
    ] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.table,
) -> None:
    """Check this machine: Python, libraries, memory, disk, Ray's folders, stray processes; with RUN its storage and supervisor.

    With --context check a cluster instead: CRDs, KubeRay, what you may do, the operator, stuck deletions; with RUN its storage.
    """
    from samite.cli.place import chosen, engine
    from samite.errors import UsageError

    place = chosen()
    client: Any = engine(place=place)
    if fix_finalizers:
        if not place.is_cluster:
            raise UsageError("--fix-finalizers is about runs on Kubernetes: name the cluster with --context")
        from samite.cli.doctor_finalizers import fix_finalizers as fix

        fix(client, yes=yes)
        return
    if place.is_cluster:
        from samite.cli.doctor_cluster import findings_of_cluster

        findings = list(findings_of_cluster(client))
        findings += [storage_finding(client, client.find(run))] if run else []
    else:
        findings = list(findings_of_machine())
        findings += findings_of_run(client, run) if run else []
    columns = (
        Column(title="CHECK", value=lambda item: str(item["name"])),
        Column(title="", value=lambda item: str(item["level"])),
        Column(title="FOUND", value=lambda item: str(item["found"])),
        Column(title="REMEDY", value=lambda item: str(item["remedy"])),
    )
    items = [{"name": f.name, "ok": f.ok, "level": f.level, "found": f.found, "remedy": f.remedy} for f in findings]
    print_items(items, output, kind="Finding", columns=columns)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(EXIT_PROBLEMS)


def findings_of_machine() -> Iterator[Finding]:
    """The checks that need no run."""
    checks: tuple[Callable[[], Finding], ...] = (_python, _worker_libraries, _memory, _home, _temporary, _gpu, _strays)
    for check in checks:
        yield check()


def findings_of_run(client: Any, name: str) -> list[Finding]:
    """Storage and supervisor of a local run."""
    from samite.engines.local.client import needs_supervisor

    folder = client.find(name)
    needs, has = needs_supervisor(folder), folder.is_supervised()
    return [
        storage_finding(client, folder),
        Finding(
            name="supervisor",
            ok=has or not needs,
            found="alive" if has else "not needed: the run is settled" if not needs else "gone",
            remedy="" if has or not needs else f"samite resume {name}",
        ),
    ]


def storage_finding(client: Any, run: Any) -> Finding:
    """Whether the run's storage can hold checkpoints, asked from this machine with this shell's credentials."""
    from samite.checkpoint.store.probe import probe
    from samite.errors import SamiteError

    try:
        report = probe(client.store(run))
    except SamiteError as error:
        return Finding(name="storage", ok=False, found=str(error), remedy="see FOUND")
    problems = "; ".join(str(problem) for problem in report.problems)
    found = problems or f"{report.uri}: put, get, conditional put, list, delete"
    return Finding(name="storage", ok=not problems, found=found, remedy="see FOUND" if problems else "")


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        name="python", ok=sys.version_info >= (3, 11), found=f"{version} at {sys.executable}", remedy="Samite needs 3.11 or newer"
    )


def _worker_libraries() -> Finding:
    from importlib import metadata

    missing = []
    for library in ("torch", "ray", "tokenizers"):
        try:
            metadata.version(library)
        except metadata.PackageNotFoundError:
            missing.append(library)
    found = f"missing: {', '.join(missing)}" if missing else f"torch {metadata.version('torch')}, ray {metadata.version('ray')}"
    return Finding(name="worker", ok=not missing, found=found, remedy="pip install 'samite[worker,quickstart]'" if missing else "")


def _memory() -> Finding:
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - a kernel file, not a path of ours
            available = next((int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable")), available)
    except (OSError, ValueError):
        return Finding(name="memory", ok=None, found="this system does not tell")
    ok = available >= MIN_MEMORY_BYTES
    return Finding(name="memory", ok=ok, found=f"{available / 2**30:.1f} GiB free", remedy="" if ok else "two nodes need about 4 GiB")


def _home() -> Finding:
    from samite.engines.local.client import LocalEngine
    from samite.errors import SamiteError
    from samite.settings import Settings

    settings = Settings.from_environment()
    try:
        LocalEngine(settings).check_home()
    except SamiteError as error:
        return Finding(name="home", ok=False, found=str(error), remedy="export SAMITE_HOME=/some/folder")
    free = shutil.disk_usage(settings.runs).free
    ok = free >= MIN_FREE_BYTES
    return Finding(
        name="home",
        ok=ok,
        found=f"{settings.home}, {free / 2**30:.1f} GiB free",
        remedy="" if ok else "free some space: checkpoints need it",
    )


def _temporary() -> Finding:
    from samite.engines.local.ray_command import short_temporary_folder
    from samite.errors import SamiteError

    try:
        folder = short_temporary_folder()
    except SamiteError as error:
        return Finding(name="sockets", ok=False, found=str(error), remedy="export TMPDIR=/tmp")
    folder.rmdir()
    return Finding(name="sockets", ok=True, found=f"Ray's sockets go to {folder.parent}")


def _gpu() -> Finding:
    program = shutil.which("nvidia-smi")
    return Finding(
        name="gpu", ok=None if program is None else True, found="none seen: training runs on the CPU" if program is None else program
    )


def _strays() -> Finding:
    from samite.engines.local.client import LocalEngine
    from samite.engines.local.processes import processes_of_run
    from samite.settings import Settings

    engine: Any = LocalEngine(Settings.from_environment())
    strays = {run.name: len(processes_of_run(str(engine.record(run).get("uid", "-")))) for run in engine.runs() if not run.is_supervised()}
    strays = {name: count for name, count in strays.items() if count}
    found = ", ".join(f"{count} of {name}" for name, count in strays.items()) or "none"
    return Finding(
        name="strays", ok=not strays, found=found, remedy="samite list starts a supervisor, which adopts or ends them" if strays else ""
    )
