"""The background thread: order, back-pressure, errors, waiting time, shutdown."""

import threading
import time
from itertools import count

import pytest

from samite_workloads.data.prefetch import Prefetcher


def test_items_come_in_order_and_only_a_few_are_made_ahead():
    made = []
    numbers = count()

    def produce() -> int:
        made.append(next(numbers))
        return made[-1]

    prefetcher = Prefetcher(produce, depth=2)
    assert [prefetcher.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    time.sleep(0.3)
    assert len(made) <= 5 + 2 + 1
    prefetcher.close()


def test_an_error_of_the_producer_surfaces_after_the_items_before_it_and_stays():
    numbers = count()

    def produce() -> int:
        number = next(numbers)
        if number == 2:
            raise OSError("disk gone")
        return number

    prefetcher = Prefetcher(produce)
    assert [prefetcher.get(), prefetcher.get()] == [0, 1]
    for _ in range(2):
        with pytest.raises(OSError, match="disk gone"):
            prefetcher.get()
    prefetcher.close()


def test_time_spent_waiting_is_measured():
    def produce() -> int:
        time.sleep(0.1)
        return 1

    prefetcher = Prefetcher(produce)
    for _ in range(3):
        prefetcher.get()
    assert 0.2 <= prefetcher.wait_s < 30
    prefetcher.close()


def test_closing_wakes_a_consumer_that_waits():
    release = threading.Event()
    prefetcher: Prefetcher[bool] = Prefetcher(lambda: release.wait(30))
    threading.Timer(0.2, prefetcher.close, kwargs={"timeout_s": 0}).start()
    with pytest.raises(RuntimeError, match="closed"):
        prefetcher.get()
    release.set()
    prefetcher.close()


def test_closing_twice_is_no_error():
    prefetcher = Prefetcher(lambda: 1)
    prefetcher.close()
    prefetcher.close()
