"""Where the time of a run went: productive, or lost to one of eight causes. The sum is the wall time, to the second.

Each turn books the time since the last turn under the account that was open then. Time before a failure was noticed is moved from productive to
`detect` when it is noticed, because nobody could know it earlier.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum


class Account(StrEnum):
    """What the run's time is spent on."""

    PRODUCTIVE = "productive"
    QUEUE = "queue"
    START = "start"
    DETECT = "detect"
    RESTART = "restart"
    LOAD = "load"
    RECOMPUTE = "recompute"
    CHECKPOINT_STALL = "checkpoint_stall"
    HOLD = "hold"
    SUSPENDED = "suspended"
    CLOSED = "closed"
    """After the end: not booked at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """Seconds lost, by cause."""

    queue: float = 0.0
    start: float = 0.0
    detect: float = 0.0
    restart: float = 0.0
    load: float = 0.0
    recompute: float = 0.0
    checkpoint_stall: float = 0.0
    hold: float = 0.0

    @property
    def total(self) -> float:
        """Seconds over all causes."""
        return float(sum(getattr(self, item.name) for item in fields(self)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """The books of one run, in seconds."""

    open_account: Account = Account.QUEUE
    productive: float = 0.0
    suspended: float = 0.0
    lost: Lost = Lost()

    def booked(self, seconds: float) -> "Ledger":
        """With `seconds` added to the open account."""
        if seconds <= 0.0 or self.open_account is Account.CLOSED:
            return self
        if self.open_account is Account.PRODUCTIVE:
            return replace(self, productive=self.productive + seconds)
        if self.open_account is Account.SUSPENDED:
            return replace(self, suspended=self.suspended + seconds)
        name = self.open_account.value
        return replace(self, lost=replace(self.lost, **{name: getattr(self.lost, name) + seconds}))

    def noticed(self, seconds: float) -> "Ledger":
        """With `seconds` moved from productive to detect: a failure was noticed so long after it happened."""
        moved = min(max(seconds, 0.0), self.productive)
        return replace(self, productive=self.productive - moved, lost=replace(self.lost, detect=self.lost.detect + moved))

    def opened(self, account: Account) -> "Ledger":
        """With another account open from now on."""
        return self if account is self.open_account else replace(self, open_account=account)

    @property
    def wall(self) -> float:
        """Seconds since the start, suspended time left out."""
        return self.productive + self.lost.total

    @property
    def percent(self) -> float | None:
        """Effective training time in percent; None before any time has passed."""
        return 100.0 * self.productive / self.wall if self.wall > 0.0 else None
