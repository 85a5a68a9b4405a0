"""`make demo`: submit the quickstart, watch it, cut the power of one of its two nodes in stage two, and prove that nothing was lost.

Ends with a six-line summary and the report's path; exits 1 if the loss did not fall, a checkpoint does not verify, or the run did not succeed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from proof import ROOT, Demo, corpus_of_home, in_stage_two, say

SPEC = ROOT / "examples" / "quickstart" / "run.yaml"
RUN = "quickstart"
KILL_AFTER_STEPS = 12
"""Steps into stage two at which the node dies: after its first checkpoint there, and not at one."""
LIMIT_S = 900.0

os.environ.setdefault("SAMITE_HOME", str(ROOT / ".samite"))


def main() -> int:
    """Run the demo."""
    from samite.cli import watch
    from samite.engines.local.client import LocalEngine
    from samite.settings import Settings

    began_s = time.monotonic()
    demo = Demo(run=RUN)
    demo.clear_earlier_run()
    say("A tiny Kimi-K3-style model, text and images, two nodes, two stages of growing context. One node will die.\n")
    say(f"$ samite submit -f {SPEC.relative_to(ROOT)}")
    submitted = subprocess.run([sys.executable, "-m", "samite", "--quiet", "submit", "-f", str(SPEC)], cwd=ROOT, check=False)
    if submitted.returncode:
        return submitted.returncode
    engine = LocalEngine(Settings.from_environment())
    folder = engine.find(RUN)
    say(f"$ samite status {RUN} -w      (this screen; Ctrl-C leaves the run alone)\n")
    try:
        watch.watch_run(engine, folder, each_turn=Executioner(demo), limit_s=LIMIT_S)
    except KeyboardInterrupt:
        home = os.environ["SAMITE_HOME"]
        say(f"\nThe run goes on without this screen. End it: SAMITE_HOME={home} {sys.executable} -m samite cancel {RUN} --yes")
        return 130
    say("")
    status = engine.status(folder)
    demo.prove(status, folder.path, corpus_of_home())
    report = demo.samite("report", RUN).strip() or str(folder.path / "report.html")
    demo.summary(status, report, took_s=time.monotonic() - began_s)
    return 1 if demo.problems else 0


class Executioner:
    """Kills one node, once, when stage two has trained for a while."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self.done = False

    def __call__(self, status: dict[str, Any]) -> None:
        """Look at the status; strike when it is time."""
        if not self.done and in_stage_two(status, steps=KILL_AFTER_STEPS):
            self.done = True
            self._demo.samite("chaos", "kill-node", RUN, echo=False)


if __name__ == "__main__":
    sys.exit(main())
