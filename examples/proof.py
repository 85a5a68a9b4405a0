"""What the demos prove at the end, and how they say it. Shared by examples/quickstart/demo.py and examples/kubernetes/demo.py.

Everything a demo does to a run is a `samite` command, echoed before it runs, so that a reader can do the same by hand.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(kw_only=True)
class Demo:
    """One run of a demo, and what turned out wrong about it. `flags` say where the run lives: none for this machine."""

    run: str
    flags: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)

    def samite(self, *arguments: str, echo: bool = True, check: bool = True) -> str:
        """Run one samite command; returns its stdout. Ends the demo with the command's own words if it fails."""
        if echo:
            say(f"$ samite {' '.join((*self.flags, *arguments))}")
        done = self.run_samite(*arguments)
        if done.returncode and check:
            sys.exit(f"samite {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def run_samite(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one samite command and give everything it said."""
        command = [sys.executable, "-m", "samite", *self.flags, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    def clear_earlier_run(self) -> None:
        """An earlier demo's run is in the way of this one."""
        for run in json.loads(self.samite("list", "-o", "json", echo=False))["items"]:
            if run["name"] == self.run:
                if run["phase"] not in {"Succeeded", "Failed", "Cancelled"}:
                    self.samite("cancel", self.run, "--yes", "--wait")
                self.samite("delete", self.run, "--yes")

    def prove(self, status: dict[str, Any], records: Path, corpus: Path) -> None:
        """What has to be true at the end; what is not becomes a problem. `records` is laid out as a run folder, `corpus` is the prepared corpus."""
        if status["phase"] != "Succeeded":
            self.problems.append(f"the run is {status['phase']}: {status.get('message', '')}")
        if not status.get("recoveries"):
            self.problems.append("no node was lost, so no recovery was shown")
        verified = self.run_samite("checkpoints", "verify", self.run, "--full")
        say(f"$ samite {' '.join((*self.flags, 'checkpoints', 'verify', self.run, '--full'))}\n{verified.stdout.rstrip()}")
        if verified.returncode:
            self.problems.append(f"checkpoints do not verify: {verified.stdout.strip()} {verified.stderr.strip()}")
        for name, (first, last, baseline) in losses(records, corpus).items():
            say(f"loss on {name}: {first:.2f} -> {last:.2f} nats per token (unigram baseline {baseline:.2f})")
            if not last < first:
                self.problems.append(f"the loss on {name} did not fall: {first:.3f} -> {last:.3f}")

    def summary(self, status: dict[str, Any], report: str, *, took_s: float, since: str = "the kill") -> None:
        """Six lines, and where the report is. `since`: what the engine's seconds are counted from."""
        progress, recoveries = status["progress"], status.get("recoveries", [])
        parts = ("detectS", "restartS", "loadS", "firstStepS")
        say("")
        say(f"steps             {progress['step']} of {status['totalSteps']}, in {took_s:.0f} s")
        say(f"tokens            {progress['tokens']:,}")
        say(f"restarts          {len(recoveries)}   ({', '.join(r['failureClass'] + ' at L' + str(r['level']) for r in recoveries)})")
        for recovery in recoveries[-1:]:
            seconds = {part: float(recovery[part]) for part in parts}
            say(f"detected in       {seconds['detectS']:.1f} s   recovered in {sum(seconds.values()):.1f} s after {since}")
        say(f"recomputed steps  {status.get('recomputedSteps', 0)}")
        say(f"effective time    {status['ettr']['percent'] or 0.0:.1f} % of the wall time was training that counts")
        say(f"\nreport            {report}")
        for problem in self.problems:
            say(f"PROBLEM           {problem}")


def in_stage_two(status: dict[str, Any], *, steps: int) -> bool:
    """Whether the second stage has trained for so many steps."""
    return status.get("stageIndex") == 1 and status["phase"] == "Running" and status["progress"].get("stageStep", 0) >= steps


def losses(records: Path, corpus: Path) -> dict[str, tuple[float, float, float]]:
    """Loss at the beginning, at the end (mean of 5 steps each), and the unigram baseline, for text and captions."""
    from samite.telemetry.records import read_metrics

    described = json.loads((corpus / "corpus.json").read_text(encoding="utf-8"))["baselines"]
    baselines = described["train"] if "train" in described else next(iter(described.values()))
    names = {"text": ("text", "text"), "vision": ("image captions", "image_caption")}
    series: dict[str, list[float]] = {kind: [] for kind in names}
    for record in read_metrics(records / "metrics" / "rank-0.jsonl")[0]:
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


def corpus_of_home() -> Path:
    """Where `builtin:quickstart` was prepared on this machine."""
    return Path(os.environ["SAMITE_HOME"]) / "data" / "quickstart"
