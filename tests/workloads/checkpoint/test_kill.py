"""kill -9 of a writer at every point of a save, and at random ones: a partial checkpoint is never chosen, and what is chosen is whole."""

import json
import multiprocessing
import random
import threading
import time
from pathlib import Path

import pytest

from samite.checkpoint import Catalog, Level, State, open_store
from samite.checkpoint.fence import open_session
from samite.checkpoint.retention import KeepPolicy, carry_out, plan_for

# what the second save is doing when the process dies, and the step that must be found afterwards
POINTS = {
    "before the shard": ("put", "*/data/*", "kill_before", 1),
    "between shard and index": ("put", "*/data/*", "kill_after", 1),
    "between index and manifest": ("put", "*/rank/*", "kill_after", 2),
    "before the manifest": ("put_if_absent", "*/MANIFEST", "kill_before", 2),
    "between manifest and hint": ("put_if_absent", "*/MANIFEST", "kill_after", 2),
    "before the hint": ("compare_and_swap", "LATEST", "kill_before", 2),
    "after the hint": ("compare_and_swap", "LATEST", "kill_after", 2),
}


@pytest.mark.parametrize("point", list(POINTS))
def test_a_writer_killed_at_any_point_of_a_save_leaves_the_newest_whole_checkpoint(ranks, tmp_path: Path, point: str):
    uri, (operation, key, action, second) = str(tmp_path / "store"), POINTS[point]
    committed = 2 if point in {"between manifest and hint", "before the hint", "after the hint"} else 1
    faults = [(operation, key, action, second - 1 if second == 2 else 1)]
    ranks("save_until_killed", 1, uri=uri, epoch=1, faults=faults, saves=2, pause_s=0.3, started=str(tmp_path / "a"), expect_exit=False)
    assert ranks.exit_codes == [-9]
    newest = Catalog(open_store(uri)).newest_verified(Level.FULL)
    assert (newest.step, newest.manifest.extra) == (committed, {"cursor": committed})
    assert sum(entry.state is State.QUARANTINED for entry in Catalog(open_store(uri)).list()) == 0
    ranks("save_until_killed", 1, uri=uri, epoch=2, saves=1, started=str(tmp_path / "b"))
    assert json.loads((tmp_path / "b-0").read_text()) == {"step": committed, "wrong": [], "extra": {"cursor": committed}}


def test_what_a_killed_writer_left_is_cleaned_once_a_newer_attempt_has_begun(ranks, tmp_path: Path):
    uri = str(tmp_path / "store")
    faults = [(*POINTS["between index and manifest"][:3], 1)]
    ranks("save_until_killed", 1, uri=uri, epoch=1, faults=faults, saves=2, pause_s=0.3, started=str(tmp_path / "a"), expect_exit=False)
    catalog = Catalog(open_store(uri))
    assert [entry.state for entry in catalog.list()] == [State.WRITING, State.COMMITTED]
    carry_out(catalog, plan_for(catalog, KeepPolicy()))
    assert len(catalog.list()) == 2  # it might still be written
    open_session(catalog.store, run_uid="run", epoch=2, nonce="n")
    carry_out(catalog, plan_for(catalog, KeepPolicy()))
    assert [entry.state for entry in catalog.list()] == [State.COMMITTED]


@pytest.mark.parametrize("worlds", [[1] * 8, [3, 2, 4, 1, 3, 4]])
def test_random_kills_never_lose_or_mix_a_committed_checkpoint_whatever_the_next_number_of_ranks(ranks, tmp_path: Path, worlds: list[int]):
    uri, dice = str(tmp_path / "store"), random.Random(len(worlds))
    last = 0
    for epoch, world in enumerate(worlds, start=1):
        started = str(tmp_path / f"started-{epoch}")
        after = f"ckpt/*-{epoch}-*/MANIFEST" if dice.random() < 0.7 else ""
        with killer(started, tmp_path / "store", after, dice, world):
            ranks("save_until_killed", world, uri=uri, epoch=epoch, started=started, expect_exit=False, limit_s=40)
        facts = json.loads(Path(f"{started}-0").read_text())
        assert facts["wrong"] == []
        assert facts["step"] >= last, "a committed checkpoint was lost"
        assert facts["extra"] == ({"cursor": facts["step"]} if facts["step"] else {})
        found = Catalog(open_store(uri)).newest_verified(Level.FULL)
        last = found.step if found else 0
    assert last > 0
    assert not [entry for entry in Catalog(open_store(uri)).list() if entry.state in {State.QUARANTINED, State.DAMAGED}]


class killer:
    """Kills all ranks one after another at a random moment, once they have begun and `after` (a pattern below `store`) exists."""

    def __init__(self, started: str, store: Path, after: str, dice: random.Random, world: int) -> None:
        moment = (dice.uniform(0.0, 0.3), dice.uniform(0.0, 0.05))
        self._thread = threading.Thread(target=self._kill, args=(started, store, after, moment, world), daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)

    @staticmethod
    def _kill(started: str, store: Path, after: str, moment: tuple[float, float], world: int) -> None:
        files = [Path(f"{started}-{rank}") for rank in range(world)]
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s and not (all(file.exists() for file in files) and (not after or any(store.glob(after)))):
            time.sleep(0.005)
        delay_s, gap_s = moment
        time.sleep(delay_s)
        for process in multiprocessing.active_children():
            process.kill()
            time.sleep(gap_s)
