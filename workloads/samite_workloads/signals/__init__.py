"""Signals of training: what the trainer measures, turned into registered metrics, and the rules that turn metrics into events.

    reduction.py     many small tensors of all ranks in two collectives and one copy to the host
    decay.py         the decay signals of linear attention, per layer          decay_rule.py   when they deserve an alarm
    router.py        expert load against chance, and the collapse rule
    step.py          loss, gradient norms, durations, tokens, memory of one step
    spikes.py        loss and gradient norm that leave their band             stragglers.py   ranks that compute slower than the rest
    schedule.py      which steps are sampled
    recorder.py      all of it behind one object that the training loop calls

Everything but `reduction.py`, `decay.py` and `memory.py` works on plain numbers and needs no torch.
"""

from samite_workloads.signals.recorder import SignalRecorder
from samite_workloads.signals.step import StepMeasure

__all__ = ["SignalRecorder", "StepMeasure"]
