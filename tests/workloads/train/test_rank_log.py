"""What a rank prints: one readable line a step, and everything that the process writes, native code included, in its own file."""

import os
import subprocess
import sys
from pathlib import Path

from samite_workloads.train.numeric import StepNumbers
from samite_workloads.train.observe import StepRecord
from samite_workloads.train.rank_log import step_line


def record(**changes: object) -> StepRecord:
    fields = {
        "step": 61,
        "stage_step": 1,
        "tokens": 1,
        "step_tokens": 2048,
        "rows": (0, 4),
        "supervised": (5, 0),
        "padded": 0,
        "learning_rate": 1e-3,
        "total_s": 2.0,
        "busy_s": 1.0,
        "data_s": 0.1,
        "recomputed": False,
        "sampled": False,
        "busy_of_ranks_s": (1.0,),
    }
    return StepRecord(**{**fields, **changes})  # type: ignore[arg-type]


NUMBERS = StepNumbers(loss=5.91234, loss_by_modality=(5.9, 3.1), grad_norm=1.83, grad_norm_by_family=(), clipped=False)


def test_a_step_is_one_line_with_loss_time_and_rate():
    assert step_line(record(), NUMBERS, of_stage=60) == "step 61 (1/60)  loss 5.9123  grad 1.830  2.00 s  1,024 tokens/s"


def test_a_step_without_a_supervised_token_shows_no_loss():
    line = step_line(record(), None, of_stage=None)
    assert line.startswith("step 61 (1)  no supervised token")
    assert "0.0" not in line.replace("2.00 s", "")


def test_a_recomputed_step_says_so():
    assert step_line(record(recomputed=True), NUMBERS, of_stage=60).endswith("again")


def test_native_writes_and_python_prints_land_in_the_ranks_own_file_over_incarnations(tmp_path: Path):
    program = (
        "import os, sys; from pathlib import Path; from samite_workloads.train.rank_log import keep_output, say\n"
        "keep_output(Path(sys.argv[1]) / 'logs', 3); say('hello'); os.write(2, b'native\\n'); print('python', file=sys.stderr)"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
        )
        assert done.stdout + done.stderr == ""
    text = (tmp_path / "logs" / "rank-3.log").read_text()
    assert [text.count(word) for word in ("hello", "native", "python")] == [2, 2, 2]
