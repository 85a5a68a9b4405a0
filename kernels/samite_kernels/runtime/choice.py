"""Which backend an operator beside KDA runs on, and why: the choice as a value.

    sm90       ours, CUDA for Hopper
    reference  plain torch, anywhere

Ours runs wherever it can, and `explain` says so or why not. A variable of the operator forces either; a forced backend that can't run is an
error, never a silent change. KDA itself has `kda/dispatch.py`.
"""

import os
from dataclasses import dataclass, field


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


def choose(operator: str, variable: str, obstacle: str | None, *, reference: str = "reference") -> Choice:
    """The choice for an operator with a kernel of ours and one other way. `obstacle`: why the kernel can't run, if so.

    `reference` names the other way. `variable` in the environment forces one. Raises ValueError for an unknown name and for a forced kernel
    that can't run.
    """
    forced = os.environ.get(variable)
    names = ("sm90", reference)
    if forced and forced not in names:
        raise ValueError(f"{variable} must be one of {', '.join(names)}, found {forced!r}")
    if forced == "sm90" and obstacle:
        raise ValueError(f"{variable} asks for sm90, which can't run here: {obstacle}. Unset it to let Samite choose")
    if forced:
        return Choice(operator=operator, backend=forced, reason=f"forced by {variable}")
    if obstacle:
        return Choice(operator=operator, backend=reference, reason="nothing faster fits", rejected={"sm90": obstacle})
    return Choice(operator=operator, backend="sm90", reason="Hopper device")
