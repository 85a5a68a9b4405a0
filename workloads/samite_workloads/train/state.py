"""Where a run stands, apart from tensors: the counters and the data cursor that ride in every checkpoint."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

STATE_VERSION = 1


@dataclass(kw_only=True, slots=True)
class TrainState:
    """The same on every rank. `step` and `tokens` only grow, whatever a hand-over resets: checkpoints are ordered by them."""

    stage_index: int = 0
    stage_name: str = ""
    step: int = 0
    """Optimizer steps finished over the whole run, refused and empty ones included."""
    stage_step: int = 0
    tokens: int = 0
    """Positions trained over the whole run, padding included."""
    stage_tokens: int = 0
    step_counter: int = 0
    """Steps since the last hand-over that said `stepCounter: Reset`."""
    token_counter: int = 0
    """Tokens since the last hand-over that said `tokenCounter: Reset`."""
    empty_steps: int = 0
    """Steps without a supervised token: counted, not trained."""
    stage_wall_s: float = 0.0
    """Seconds trained in this stage, without what failures cost."""
    cursor: dict[str, Any] | None = None
    """The loader's position as JSON; None before the first step."""

    def advance(self, *, tokens: int, cursor: dict[str, Any], empty: bool) -> None:
        """One optimizer step is done."""
        self.step += 1
        self.stage_step += 1
        self.step_counter += 1
        self.tokens += tokens
        self.stage_tokens += tokens
        self.token_counter += tokens
        self.empty_steps += int(empty)
        self.cursor = cursor

    def to_json(self) -> dict[str, Any]:
        """For the checkpoint's `extra`."""
        return {"version": STATE_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """From a checkpoint's `extra`; raises ValueError for another version."""
        if document.get("version") != STATE_VERSION:
            raise ValueError(f"trainer state: wanted version {STATE_VERSION}, found {document.get('version')!r}")
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in document.items() if key in known})
