"""Steps and micro-batches without a supervised token: no loss is invented, no gradient is diluted, no weight moves."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from samite_workloads.batch import IGNORED_LABEL
from samite_workloads.parallel.group import Rendezvous, free_port
from samite_workloads.parallel.sharding import local
from samite_workloads.train.learner import Learner, count_supervised
from samite_workloads.train.loop import Parts, run_steps
from samite_workloads.train.observe import Observer
from samite_workloads.train.plan import plan_of
from samite_workloads.train.ranks import RankFacts
from samite_workloads.train.resume import open_loader, restore_or_begin
from samite_workloads.train.saving import open_saver
from samite_workloads.train.session import open_session


class Silenced:
    """A loader whose steps in `steps` (counted from 1) have lost their labels."""

    def __init__(self, loader, steps):
        self.loader, self.steps, self.step = loader, steps, 0

    def __next__(self):
        self.step += 1
        batches = next(self.loader)
        return [without_labels(batch) for batch in batches] if self.step in self.steps else batches

    def cursor(self):
        return self.loader.cursor()


def without_labels(batch):
    return replace(batch, labels_T=torch.full_like(batch.labels_T, IGNORED_LABEL))


@pytest.fixture
def parts(new_attempt):
    """Everything of one rank in this process, which stores nothing."""
    attempt = new_attempt(checkpoint_uri="")
    plan = plan_of(attempt)
    meeting = Rendezvous(rank=0, world_size=1, local_rank=0, host="127.0.0.1", port=free_port(), node_address="127.0.0.1")
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with ExitStack() as stack:
        session = stack.enter_context(open_session(attempt, plan, RankFacts(node="here", meeting=meeting, device_type="cpu")))
        learner, saver = Learner(plan, session.groups), open_saver(attempt, plan, session)
        state = restore_or_begin(attempt, plan, learner, saver, session)
        loader = stack.enter_context(open_loader(attempt, plan, state, session, learner.config))
        observer = Observer(plan, session, learner)
        yield Parts(plan=plan, state=state, session=session, learner=learner, loader=loader, saver=saver, observer=observer)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def weights(learner):
    return {name: local(tensor).clone() for name, tensor in learner.tensors().items()}


def test_steps_without_a_label_are_counted_and_change_nothing(parts, losses):
    before = weights(parts.learner)
    silenced = Parts(**{name: getattr(parts, name) for name in Parts.__slots__} | {"loader": Silenced(parts.loader, range(1, 7))})
    assert run_steps(silenced) is False
    assert (parts.state.step, parts.state.empty_steps, parts.state.tokens) == (6, 6, 6 * 288)
    assert losses(parts.session.attempt.run_folder) == {}
    after = weights(parts.learner)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_the_loss_of_a_step_is_missing_where_nothing_was_supervised_and_only_there(parts, losses):
    silenced = Parts(**{name: getattr(parts, name) for name in Parts.__slots__} | {"loader": Silenced(parts.loader, {3})})
    run_steps(silenced)
    assert sorted(losses(parts.session.attempt.run_folder)) == [1, 2, 4, 5, 6]
    assert parts.state.empty_steps == 1


def test_a_micro_batch_without_labels_leaves_the_gradient_of_the_others_alone(parts):
    batches = next(parts.loader)
    silent = [*batches[:2], without_labels(batches[2])]
    alone = batches[:2]
    gradients = []
    for chosen in (silent, alone):
        parts.learner.forward_backward(chosen, supervised=count_supervised(chosen))
        gradients.append([local(p.grad).clone() for p in parts.learner.parameters.parameters])
    assert max((a - b).abs().max().item() for a, b in zip(*gradients, strict=True) if a.numel()) < 1e-6
