"""Kill and go on: the resumed run is the unbroken one, bit for bit with the same ranks, sample for sample with others."""

import pytest
import torch

from samite.checkpoint import Catalog, open_store


def cursor_of(attempt, checkpoint_id):
    return Catalog(open_store(attempt.checkpoint_uri)).manifest(checkpoint_id).extra["state"]["cursor"]


@pytest.mark.parametrize(
    ("ranks", "point", "step"), [(1, "step", 4), (2, "step", 6), (2, "checkpoint.shard", 4), (2, "checkpoint.commit", 4)]
)
def test_a_killed_run_ends_with_the_same_bits(ranks, point, step, new_attempt, run_attempt, ask_for_fault, losses, result_of, stored):
    unbroken = new_attempt("unbroken", ranks=ranks)
    assert run_attempt(unbroken) == [0] * ranks

    killed = new_attempt("killed", ranks=ranks)
    ask_for_fault(killed, {"kind": "kill", "rank": 0, "step": step, "point": point})
    assert run_attempt(killed)[0] == -9
    resumed = new_attempt("killed", ranks=ranks)
    assert run_attempt(resumed) == [0] * ranks

    assert losses(resumed.run_folder) == losses(unbroken.run_folder)
    end, expected = result_of(resumed), result_of(unbroken)
    assert (end.step, end.tokens) == (expected.step, expected.tokens) == (6, 6 * 288)
    found, wanted = stored(resumed, end.checkpoint_id), stored(unbroken, expected.checkpoint_id)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_other_numbers_of_ranks_see_every_sample_once_and_learn_the_same(new_attempt, run_attempt, ask_for_fault, losses, result_of):
    unbroken = new_attempt("unbroken", ranks=1)
    assert run_attempt(unbroken) == [0]

    first = new_attempt("moved", ranks=2)
    ask_for_fault(first, {"kind": "kill", "rank": 0, "step": 3})
    run_attempt(first)
    second = new_attempt("moved", ranks=3)
    assert run_attempt(second) == [0, 0, 0]

    end, expected = result_of(second), result_of(unbroken)
    assert (end.step, end.tokens) == (expected.step, expected.tokens)
    assert cursor_of(second, end.checkpoint_id) == cursor_of(unbroken, expected.checkpoint_id)
    found, wanted = losses(second.run_folder), losses(unbroken.run_folder)
    assert found.keys() == wanted.keys()
    assert [found[step] for step in sorted(found)] == pytest.approx([wanted[step] for step in sorted(wanted)], rel=1e-4)


def test_steps_that_an_earlier_attempt_had_done_count_as_recomputed(new_attempt, run_attempt, ask_for_fault, result_of):
    killed = new_attempt(ranks=1)
    # Step 2 is stored beside the training; the pause lets its commit end on a starved machine too.
    ask_for_fault(killed, {"kind": "sleep", "rank": 0, "step": 4, "seconds": 3.0}, {"kind": "kill", "rank": 0, "step": 4})
    assert run_attempt(killed) == [-9]
    resumed = new_attempt(ranks=1)
    assert run_attempt(resumed) == [0]
    assert result_of(resumed).recomputed_steps == 1  # step 3 was done, step 2 was stored


def test_an_attempt_that_finds_the_stage_finished_trains_nothing_more(new_attempt, run_attempt, result_of):
    finished = new_attempt(ranks=1)
    assert run_attempt(finished) == [0]
    again = new_attempt(ranks=1)
    assert run_attempt(again) == [0]
    assert result_of(again).checkpoint_id == result_of(finished).checkpoint_id
    assert result_of(again).outcome == "stage_complete"
