"""What a rank prints, for people: one line a step, into `attempts/<submission id>/logs/rank-<r>.log` where no terminal listens.

`samite logs` shows these files. Under Ray, what native libraries write goes there too: the last words of a dying process are worth most.
"""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from samite_workloads.train.numeric import StepNumbers
    from samite_workloads.train.observe import StepRecord


def keep_output(folder: Path, rank: int) -> None:
    """From now on stdout and stderr of this process, native writes included, are appended to the rank's log in `folder` (made if missing)."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(log, stream)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def say(line: str) -> None:
    """One line with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def step_line(record: "StepRecord", numbers: "StepNumbers | None", *, of_stage: int | None) -> str:
    """`step 61 (1/60)  loss 5.912  grad 1.83  1.24 s  1,652 tokens/s`; a step without a supervised token has no loss and says so."""
    place = f"step {record.step} ({record.stage_step}{f'/{of_stage}' if of_stage else ''})"
    outcome = "no supervised token: counted, not trained" if numbers is None else f"loss {numbers.loss:.4f}  grad {numbers.grad_norm:.3f}"
    again = "  again" if record.recomputed else ""
    return f"{place}  {outcome}  {record.total_s:.2f} s  {record.step_tokens / max(record.total_s, 1e-9):,.0f} tokens/s{again}"
