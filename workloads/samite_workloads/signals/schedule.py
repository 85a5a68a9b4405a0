"""Which steps are sampled: every `every` steps, and each of `burst` steps after a restart, a context change, or an alarm."""


class SampleSchedule:
    """Pure arithmetic on step numbers, the same on all ranks: sampled steps hold a collective."""

    def __init__(self, *, every: int, burst: int = 200) -> None:
        if every < 1:
            raise ValueError(f"steps between samples must be at least 1, got {every}")
        self.every = every
        self.burst = burst
        self._until = -1

    def began(self, step: int) -> None:
        """A restart, a new stage or an alarm at `step`. All ranks must be told the same."""
        self._until = max(self._until, step + self.burst)

    def due(self, step: int) -> bool:
        """True if `step` is sampled."""
        return step <= self._until or step % self.every == 0
