"""A simulated world for `decide`: clusters, Ray, a trainer and a storage, in virtual time. For tests, and to try a restart policy without a machine.

It is strict where engines are strict: applying an action twice changes nothing, a submission id is taken once, a checkpoint exists when it is
committed, a hand-over is put once. `BrokenPromiseError` is raised when something happens that must never happen: two live submissions, a
destructive action on too little evidence, a start from nothing although a checkpoint exists, a stage without its hand-over.
"""

from samite.lifecycle.simulation import faults
from samite.lifecycle.simulation.engine import Engine
from samite.lifecycle.simulation.samples import impatient, small_plan, small_run
from samite.lifecycle.simulation.things import BrokenPromiseError
from samite.lifecycle.simulation.world import World

__all__ = ["BrokenPromiseError", "Engine", "World", "faults", "impatient", "small_plan", "small_run"]
