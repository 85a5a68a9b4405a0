"""`make soak-local`: random kills of every part of a local run, until each has recovered or held with a true reason.

Each round submits the same small run, breaks one random part of it at a random moment (while it trains, or while a checkpoint is written),
and compares the end with an unbroken run's: final weights and every step's loss bit for bit, no partial checkpoint chosen, nothing left behind.
Prints one line a round, a table at the end, and exits 1 if any round failed. `--seed` repeats a sequence.
"""

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from local_run import LocalRun, spec_document

FAULTS = ("kill-node", "kill-rank", "stop-rank", "kill-head", "kill-driver", "kill-supervisor")
MOMENTS = ("training", "checkpoint")
LIMIT_S = 240.0


@dataclass(kw_only=True)
class Round:
    """What was done in one round and what came of it."""

    number: int
    fault: str
    moment: str
    recovery_s: float | None = None
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        verdict = "ok" if not self.problems else "FAILED: " + "; ".join(self.problems)
        seconds = f"{self.recovery_s:5.1f} s" if self.recovery_s is not None else "      -"
        return f"round {self.number:>2}  {self.fault:<15} during {self.moment:<10}  {seconds}  {verdict}"


def main() -> int:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    dice = random.Random(options.seed)
    say(f"soak: {options.rounds} rounds, seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="samite-soak-") as place:
        corpus = prepare(Path(place))
        with LocalRun(Path(place) / "unbroken", spec_document("unbroken", corpus)) as run:
            run.submit().until_phase("Succeeded", limit_s=LIMIT_S)
            weights, losses = run.final_weights(), run.losses()
        say(f"the unbroken run: {len(losses)} steps, {len(weights)} chunks of final weights")
        rounds = []
        # Every fault at every moment comes up before any pair comes twice; their order and the step are left to the dice.
        pairs: list[tuple[str, str]] = []
        for number in range(1, options.rounds + 1):
            pairs = pairs or dice.sample(list(itertools.product(FAULTS, MOMENTS)), len(FAULTS) * len(MOMENTS))
            fault, moment = pairs.pop()
            played = play(Round(number=number, fault=fault, moment=moment), Path(place), corpus, dice, weights, losses)
            say(str(played))
            rounds.append(played)
    return report(rounds)


def play(played: Round, place: Path, corpus: Path, dice: random.Random, weights: dict[str, str], losses: dict[int, float]) -> Round:
    """One round; whatever goes wrong in it becomes a problem of the round."""
    try:
        with LocalRun(place / f"round-{played.number}", spec_document("soak", corpus)) as run:
            run.submit()
            wait_for_the_moment(run, played.moment, dice)
            arguments = ("--rank", str(dice.randrange(2))) if played.fault.endswith("-rank") else ()
            run.chaos(played.fault, *arguments)
            if played.fault == "kill-supervisor":
                time.sleep(dice.random() * 3)
                run.samite("list")
            else:
                # A fault so late that the ranks finish all the same (a lost head takes seconds to matter) is a fault that was survived.
                run.until(
                    "recovery",
                    lambda: bool(run.status().get("recoveries")) or run.phase() == "Succeeded",
                    limit_s=LIMIT_S,
                    or_phase="Succeeded",
                )
                for recovery in run.status()["recoveries"][:1]:
                    played.recovery_s = sum(recovery[part] for part in ("detectS", "restartS", "loadS", "firstStepS"))
            run.until_phase("Succeeded", limit_s=LIMIT_S)
            played.problems += compare(run, weights, losses)
    except (AssertionError, OSError, ValueError) as error:
        played.problems.append(str(error))
    return played


def wait_for_the_moment(run: LocalRun, moment: str, dice: random.Random) -> None:
    """Wait for a random step, and there for the asked moment."""
    run.until_step(
        dice.randrange(2, 18), limit_s=LIMIT_S
    )  # the checkpoint that follows is never the run's last, which nothing needs to recover from
    if moment == "checkpoint":
        known = set((run.folder / "checkpoints" / "ckpt").glob("*"))
        run.until(
            "a checkpoint that is being written", lambda: bool(set((run.folder / "checkpoints" / "ckpt").glob("*")) - known), limit_s=60
        )
    else:
        time.sleep(dice.random())


def compare(run: LocalRun, weights: dict[str, str], losses: dict[int, float]) -> list[str]:
    """What differs from the unbroken run, and what was left behind."""
    problems = []
    if run.final_weights() != weights:
        problems.append("final weights differ")
    if run.losses() != losses:
        differing = [step for step, loss in losses.items() if run.losses().get(step) != loss]
        problems.append(f"losses differ at steps {differing[:5]}")
    if run.samite("checkpoints", "verify", run.name, "--full", check=False).returncode:
        problems.append("a checkpoint does not verify")
    deadline = time.monotonic() + 10
    while run.living() and time.monotonic() < deadline:
        time.sleep(0.2)
    if run.living():
        problems.append(f"{len(run.living())} processes left")
    return problems


def report(rounds: list[Round]) -> int:
    """The table; returns the exit code."""
    say("")
    for fault in FAULTS:
        times = [played.recovery_s for played in rounds if played.fault == fault and played.recovery_s is not None]
        if times:
            say(
                f"{fault:<15} {len(times):>2} recoveries, from fault to next step: median {statistics.median(times):.1f} s, worst {max(times):.1f} s"
            )
    failed = [played for played in rounds if played.problems]
    say(f"{len(rounds) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def prepare(place: Path) -> Path:
    """The corpus of all rounds."""
    from samite_workloads.data.prepare import prepare_quickstart

    return prepare_quickstart(place / "corpus").folder


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
