"""Which backend an operator beside KDA runs on, and why: the choice as a value.

    sm90       ours, CUDA for Hopper
    reference  plain torch, anywhere

A kernel that has not been timed on a GPU yet is opt-in: it runs only when its variable asks for it, and `explain` says so. A forced backend
that can't run is an error, never a silent change. KDA itself has `kda/dispatch.py`.
"""

import os
from dataclasses import dataclass, field

NOT_MEASURED = "built for Hopper and checked without one, not measured yet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The backend that runs, and for every one passed over the reason in words."""

    operator: str
    backend: str
    reason: str
    rejected: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.operator} backend: {self.backend} ({self.reason})"]
        lines += [f"  not {name}: {why}" for name, why in self.rejected.items()]
        return "\n".join(lines)


def choose_opt_in(operator: str, variable: str, obstacle: str | None, *, reference: str = "reference") -> Choice:
    """The choice for an operator whose kernel runs only when `variable` says sm90. `obstacle`: why the kernel can't run, if so.

    `reference` names the backend that runs otherwise. Raises ValueError for an unknown name and for a forced kernel that can't run.
    """
    forced = os.environ.get(variable)
    names = ("sm90", reference)
    if forced and forced not in names:
        raise ValueError(f"{variable} must be one of {', '.join(names)}, found {forced!r}")
    if forced == "sm90":
        if obstacle:
            raise ValueError(f"{variable} asks for sm90, which can't run here: {obstacle}. Unset it to let Samite choose")
        return Choice(operator=operator, backend="sm90", reason=f"forced by {variable}")
    why_not = obstacle or f"{NOT_MEASURED}: set {variable}=sm90 to run it"
    reason = f"forced by {variable}" if forced else "what runs until the kernel is measured" if not obstacle else "nothing faster fits"
    return Choice(operator=operator, backend=reference, reason=reason, rejected={"sm90": why_not})
