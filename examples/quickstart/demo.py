"""`make demo`: submit the quickstart, watch it, cut the power of one of its two nodes in stage two, and prove that nothing was lost.

Everything it does to the run is a `samite` command, echoed before it runs, so that a reader can do the same by hand.
Ends with a six-line summary and the report's path; exits 1 if the loss did not fall, a checkpoint does not verify, or the run did not succeed.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "examples" / "quickstart" / "run.yaml"
RUN = "quickstart"
KILL_AFTER_STEPS = 12
"""Steps into stage two at which the node dies: after its first checkpoint there, and not at one."""
LIMIT_S = 900.0

os.environ.setdefault("SAMITE_HOME", str(ROOT / ".samite"))


def samite(*arguments: str, echo: bool = True, check: bool = True) -> str:
    """Run one samite command; returns its stdout."""
    if echo:
        say(f"$ samite {' '.join(arguments)}")
    done = subprocess.run([sys.executable, "-m", "samite", *arguments], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode and check:
        sys.exit(f"samite {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the demo."""
    from samite.cli import watch
    from samite.engines.local.client import LocalEngine
    from samite.settings import Settings

    began_s = time.monotonic()
    clear_earlier_run()
    say("A tiny Kimi-K3-style model, text and images, two nodes, two stages of growing context. One node will die.\n")
    say(f"$ samite submit -f {SPEC.relative_to(ROOT)}")
    submitted = subprocess.run([sys.executable, "-m", "samite", "--quiet", "submit", "-f", str(SPEC)], cwd=ROOT, check=False)
    if submitted.returncode:
        return submitted.returncode
    engine = LocalEngine(Settings.from_environment())
    folder = engine.find(RUN)
    say(f"$ samite status {RUN} -w      (this screen; Ctrl-C leaves the run alone)\n")
    try:
        watch.watch_run(engine, folder, each_turn=Executioner(), limit_s=LIMIT_S)
    except KeyboardInterrupt:
        say(
            f"\nThe run goes on without this screen. End it: SAMITE_HOME={os.environ['SAMITE_HOME']} {sys.executable} -m samite cancel {RUN} --yes"
        )
        return 130
    say("")
    problems = prove(folder)
    summary(engine.status(folder), folder, took_s=time.monotonic() - began_s, problems=problems)
    return 1 if problems else 0


def clear_earlier_run() -> None:
    """An earlier demo's run is in the way of this one."""
    runs = json.loads(samite("list", "-o", "json", echo=False))["items"]
    for run in runs:
        if run["name"] == RUN:
            if run["phase"] not in {"Succeeded", "Failed", "Cancelled"}:
                samite("cancel", RUN, "--yes", "--wait")
            samite("delete", RUN, "--yes")


class Executioner:
    """Kills one node, once, when stage two has trained for a while."""

    def __init__(self) -> None:
        self.done = False

    def __call__(self, status: dict[str, Any]) -> None:
        """Look at the status; strike when it is time."""
        in_stage_two = status.get("stageIndex") == 1 and status["phase"] == "Running"
        if in_stage_two and not self.done and status["progress"].get("stageStep", 0) >= KILL_AFTER_STEPS:
            self.done = True
            samite("chaos", "kill-node", RUN, echo=False)


def prove(folder: Any) -> list[str]:
    """What has to be true at the end; returns what is not."""
    problems = []
    status = json.loads(folder.status_file.read_text(encoding="utf-8"))
    if status["phase"] != "Succeeded":
        problems.append(f"the run is {status['phase']}: {status.get('message', '')}")
    if not status.get("recoveries"):
        problems.append("no node was lost, so no recovery was shown")
    verified = subprocess.run(
        [sys.executable, "-m", "samite", "checkpoints", "verify", RUN, "--full"], capture_output=True, text=True, check=False
    )
    say(f"$ samite checkpoints verify {RUN} --full\n{verified.stdout.rstrip()}")
    if verified.returncode:
        problems.append(f"checkpoints do not verify: {verified.stdout.strip()} {verified.stderr.strip()}")
    for name, (first, last, baseline) in losses(folder.path).items():
        say(f"loss on {name}: {first:.2f} -> {last:.2f} nats per token (unigram baseline {baseline:.2f})")
        if not last < first:
            problems.append(f"the loss on {name} did not fall: {first:.3f} -> {last:.3f}")
    return problems


def losses(run_folder: Path) -> dict[str, tuple[float, float, float]]:
    """Loss at the beginning, at the end (mean of 5 steps each), and the unigram baseline, for text and captions."""
    from samite.telemetry.records import read_metrics

    corpus = json.loads((Path(os.environ["SAMITE_HOME"]) / "data" / "quickstart" / "corpus.json").read_text(encoding="utf-8"))
    baselines = corpus["baselines"]["train"] if "train" in corpus["baselines"] else next(iter(corpus["baselines"].values()))
    names = {"text": ("text", "text"), "vision": ("image captions", "image_caption")}
    series: dict[str, list[float]] = {kind: [] for kind in names}
    for record in read_metrics(run_folder / "metrics" / "rank-0.jsonl")[0]:
        for point in record.points:
            kind = point.attributes.get("samite.loss.kind", "")
            if point.name == "samite.loss" and kind in series:
                series[kind].append(point.value)
    found = {}
    for kind, values in series.items():
        if len(values) >= 10:
            label, key = names[kind]
            found[label] = (sum(values[:5]) / 5, sum(values[-5:]) / 5, float(baselines.get(key, float("nan"))))
    return found


def summary(status: dict[str, Any], folder: Any, *, took_s: float, problems: list[str]) -> None:
    """Six lines, and where the report is."""
    report = samite("report", RUN, echo=True).strip() or str(folder.path / "report.html")
    progress, recoveries = status["progress"], status.get("recoveries", [])
    parts = ("detectS", "restartS", "loadS", "firstStepS")
    say("")
    say(f"steps             {progress['step']} of {status['totalSteps']}, in {took_s:.0f} s")
    say(f"tokens            {progress['tokens']:,}")
    say(f"restarts          {len(recoveries)}   ({', '.join(r['failureClass'] + ' at L' + str(r['level']) for r in recoveries)})")
    for recovery in recoveries[-1:]:
        seconds = {part: float(recovery[part]) for part in parts}
        say(f"detected in       {seconds['detectS']:.1f} s   recovered in {sum(seconds.values()):.1f} s after the kill")
    say(f"recomputed steps  {status.get('recomputedSteps', 0)}")
    say(f"effective time    {status['ettr']['percent'] or 0.0:.1f} % of the wall time was training that counts")
    say(f"\nreport            {report}")
    for problem in problems:
        say(f"PROBLEM           {problem}")


if __name__ == "__main__":
    sys.exit(main())
