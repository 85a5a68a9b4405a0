"""The program of an attempt: one rank by hand, several under torchrun, or the driver of a Ray job.

    python   -m samite_workloads.entrypoint --attempt attempt.json    one rank
    torchrun --standalone --nproc-per-node 2 -m samite_workloads.entrypoint --attempt ...    several ranks
    python   -m samite_workloads.entrypoint --attempt attempt.json --ray      driver of a Ray job (what the local engine submits)
    python   -m samite_workloads.entrypoint --attempt-env --ray      the same where pods share no folder: attempt in SAMITE_ATTEMPT (docs/heartbeat.md)
    python   -m samite_workloads.entrypoint --run run.yaml --stage 0 --folder DIR    no attempt yet: make one and run it
    python   -m samite_workloads.entrypoint --run run.yaml --folder DIR --ranks 2 --only-write    make one for torchrun and print its path

Exit code 0: stage complete or stopped as asked; 1: failed, may be tried again; 93: failed, and no restart can help; 3: run.yaml is no valid spec. How it ended stands in
`attempts/<submission id>/result.json`, each rank's failure in `failures/`.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from samite.errors import SamiteError, SpecError
from samite.spec.attempt import AttemptSpec

if TYPE_CHECKING:
    from samite_workloads.train.ranks import RankFacts

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attempt; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.attempt_env:
        return _arrived(ray=options.ray, device=options.device)
    try:
        path = Path(options.attempt) if options.attempt else attempt_by_hand(options.run, options.stage, options.folder, options.ranks)
    except SpecError as error:
        problems = [f"  {p.line or ''}  {p.path}: wanted {p.wanted}, found {p.found}" for p in error.problems]
        sys.stderr.write("\n".join([str(error), *problems]) + "\n")
        return error.exit_code
    if options.only_write:
        _say(str(path))
        return 0
    return _run(AttemptSpec.read(path), ray=options.ray, device=options.device, bridged=False)


def _arrived(*, ray: bool, device: str) -> int:
    """Run the attempt in the environment; what is printed is kept in its folder too."""
    from samite_workloads.bridge.arrival import attempt_from_environment, keep_a_copy
    from samite_workloads.train.reports import EXIT_DO_NOT_RESTART

    try:
        attempt = attempt_from_environment()
    except (ValueError, SamiteError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_DO_NOT_RESTART
    keep_a_copy(Path(attempt.run_folder) / "attempts" / attempt.submission_id / "logs" / "driver.log")
    return _run(attempt, ray=ray, device=device, bridged=ray)


def _run(attempt: AttemptSpec, *, ray: bool, device: str, bridged: bool) -> int:
    os.environ.update(attempt.environment)
    if ray:
        from samite_workloads.train.ray_driver import run_driver

        return run_driver(attempt, bridged=bridged)
    from samite_workloads.train.ranks import plain_facts, usable_device

    return run_rank(attempt, plain_facts(device_type=usable_device(device)))


def run_rank(attempt: AttemptSpec, facts: "RankFacts") -> int:
    """This process is the rank of `facts`: train, and leave a report if that fails. Returns the exit code."""
    from samite_workloads.train.failures import is_permanent
    from samite_workloads.train.loop import train_stage
    from samite_workloads.train.outcome import fail, finish
    from samite_workloads.train.reports import EXIT_DO_NOT_RESTART, EXIT_FAILED

    try:
        result = train_stage(attempt, facts)
    except Exception as error:  # noqa: BLE001  the report is the boundary: nothing below may go unseen
        traceback.print_exc()
        fail(attempt, facts, error)
        return EXIT_DO_NOT_RESTART if is_permanent(error) else EXIT_FAILED
    if facts.rank == 0:
        finish(attempt, result)
        _say(f"{result.outcome}: step {result.step}, {result.tokens} tokens, checkpoint {result.checkpoint_id or 'none'}")
    return 0


def attempt_by_hand(run_file: str, stage_index: int, folder: str, num_ranks: int) -> Path:
    """Write an attempt like an engine's, for the document `run_file`, in the run folder `folder` (made if missing); returns its path.

    The same command again makes the next attempt, which resumes. Nobody hands over between stages here: stage 0 only, or a folder whose hand-over
    an engine has committed. Raises SpecError.
    """
    from samite.spec import load_run

    run = load_run(run_file).run
    place = Path(folder).resolve()
    (place / "attempts").mkdir(parents=True, exist_ok=True)
    number = 1 + sum(1 for entry in (place / "attempts").iterdir() if entry.is_dir())
    attempt = AttemptSpec(
        run=run.to_document(),
        run_uid=f"by-hand-{run.name}",
        stage_index=stage_index,
        attempt=number,
        submission_id=f"{run.name}-s{stage_index:02d}-a{number}",
        run_folder=str(place),
        num_workers=num_ranks,
        checkpoint_uri=run.spec.checkpoint.uri or (place / "checkpoints").as_uri(),
    )
    path = place / "attempts" / attempt.submission_id / "attempt.json"
    path.parent.mkdir()
    attempt.write(path)
    return path


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m samite_workloads.entrypoint", description="Run one attempt at one stage of a training run."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--attempt", help="attempt.json that an engine wrote")
    what.add_argument("--attempt-env", action="store_true", help="the attempt is in SAMITE_ATTEMPT, packed; pods share no folder")
    what.add_argument("--run", help="run.yaml, to start by hand")
    parser.add_argument("--stage", type=int, default=0, help="with --run: index of the stage (default 0)")
    parser.add_argument("--folder", default=f"samite-run-{int(time.time())}", help="with --run: run folder, made if missing")
    parser.add_argument("--ranks", type=int, default=1, help="with --run: ranks that the attempt is for (default 1)")
    parser.add_argument("--only-write", action="store_true", help="with --run: write the attempt, print its path, and stop")
    parser.add_argument("--ray", action="store_true", help="be the driver of a Ray job")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default auto: cuda if there is one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
