"""A spec, a memory or a runtime that makes no sense: said in the status, and left alone. What runs goes on running; what is repaired is taken up."""

from samite.engines.kuberay.api import Document, ForbiddenApiError, PermanentApiError
from samite.errors import SpecError
from samite_operators.plans import problems_of
from samite_operators.run_state import Next, RunState
from samite_operators.services import Services
from samite_operators.status import refused_status

REFUSALS = (ForbiddenApiError, PermanentApiError)
"""Answers of the API server that repeating a call at once cannot change."""


def refuse(services: Services, run: Document, state: RunState, error: Exception, *, reason: str = "ValidationFailed") -> Next:
    """Say `error` in the run's status, once for each different one."""
    message = problems_of(error) if isinstance(error, SpecError) else str(error)
    before = run.get("status") or {}
    now_s = services.engine(run["metadata"]["namespace"]).now_s()
    wanted = refused_status(before, run=run, reason=reason, message=message, now_s=now_s)
    if wanted != before:
        stored = state.writer.write(services.api, run, wanted, None, now_s=services.clock())
        services.teller.event(stored, "samite.operator.spec.refused", {"message": message}, now_s=now_s)
    return Next(in_s=services.settings.idle_s, outcome="invalid")
