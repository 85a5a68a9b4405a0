"""A save that waits for its storage is told of while it waits."""

import time

from samite_workloads.checkpoint.results import Health
from samite_workloads.train.storage_watch import StorageWatch


class Saving:
    """A manager's health, and a clock, in the hand of the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.began = 0.0
        self.pending = 0
        self.told: list[tuple[str, float, int]] = []

    def health(self) -> Health:
        return Health(pending=self.pending, oldest_pending_s=self.now - self.began, retries=3, last_error="")

    def tell(self, name: str, *, storage_operation: str, duration: float, retries: int) -> None:
        assert storage_operation == "put"
        self.told.append((name, duration, retries))

    def watch(self, limit_s: float = 10.0) -> StorageWatch:
        return StorageWatch(self.health, self.tell, limit_s=limit_s, clock=lambda: self.now)


def test_a_save_over_its_limit_is_told_of_once_and_the_next_one_again():
    saving = Saving()
    watch = saving.watch()
    saving.pending, saving.began = 1, 100.0
    for _ in range(5):
        saving.now += 5.0
        watch.look()
    assert saving.told == [("samite.storage.stall", 15.0, 3)]
    saving.began = 120.0
    saving.now = 131.0
    watch.look()
    assert saving.told[1:] == [("samite.storage.stall", 11.0, 3)]


def test_a_save_in_time_and_no_save_at_all_are_no_news():
    saving = Saving()
    watch = saving.watch()
    watch.look()
    saving.pending, saving.began, saving.now = 1, 100.0, 110.0
    watch.look()
    assert saving.told == []


def test_it_is_told_while_the_loop_itself_waits():
    saving = Saving()
    saving.pending, saving.began = 1, 0.0
    with saving.watch(limit_s=0.2):
        ends_s = time.monotonic() + 10
        while not saving.told and time.monotonic() < ends_s:
            time.sleep(0.02)
    assert saving.told[0][0] == "samite.storage.stall"
