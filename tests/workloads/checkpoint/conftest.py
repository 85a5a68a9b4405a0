"""Ranks as real processes, with a hard limit that kills them all."""

import json
import multiprocessing
import runpy
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

PROGRAM = Path(__file__).with_name("rank_program.py")


class Ranks:
    """Runs `scenario` of rank_program.py in `world` processes that share a gloo group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exit_codes: list[int | None] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["torch", "torch._dynamo", "torch.distributed.fsdp", "samite_workloads.checkpoint", "samite.checkpoint.retention"]
        )
        self._runs = 0

    def __call__(self, scenario: str, world: int, *, limit_s: float = 60.0, expect_exit: bool = True, **arguments) -> list[dict]:
        self._runs += 1
        results = [self.folder / f"result-{self._runs}-{rank}.json" for rank in range(world)]
        processes = [
            self._context.Process(
                target=runpy.run_path,
                args=(str(PROGRAM),),
                kwargs={
                    "run_name": "rank_program",
                    "init_globals": {
                        "SCENARIO": scenario,
                        "RANK": rank,
                        "WORLD": world,
                        "RENDEZVOUS": str(self.folder / f"rendezvous-{self._runs}"),
                        "RESULT": str(results[rank]),
                        "ARGUMENTS": arguments,
                    },
                },
                daemon=True,
            )
            for rank in range(world)
        ]
        deadline_s = time.monotonic() + limit_s
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(0.0, deadline_s - time.monotonic()))
            late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
        self.exit_codes = [process.exitcode for process in processes]
        assert not late, f"ranks {late} of {scenario} did not end within {limit_s} s"
        if expect_exit:
            assert self.exit_codes == [0] * world
        return [json.loads(path.read_text()) if path.exists() else {} for path in results]


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)
