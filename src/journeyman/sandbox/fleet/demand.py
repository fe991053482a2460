"""How many sandboxes of a template will be asked for before a new one could be ready."""

from dataclasses import dataclass
from math import ceil, sqrt

_ROUNDING = 1e-3
"""One more sandbox is not worth a rounding error of the sums."""


@dataclass(slots=True)
class Demand:
    """Mean and variance of the arrivals in a window, older windows counting less.

    Arrivals come in bursts, so the variance is measured, not taken from the mean as it would be
    for single visitors (Poisson). Times are seconds of any clock that does not go back.
    """

    window_s: float
    memory: float
    """Weight of the past against the latest window, below 1."""
    began_at: float
    count: int = 0
    weight: float = 0.0
    """How much of the past the sums hold: below 1 while the past is short."""
    total: float = 0.0
    square: float = 0.0

    def ask(self, now: float, count: int = 1) -> None:
        self._close_windows(now)
        self.count += count

    def target(self, now: float, deviations: float) -> int:
        """Enough for the mean and so many standard deviations above it; 0 when demand is over."""
        self._close_windows(now)
        if not self.weight:
            return 0
        mean, square = self.total / self.weight, self.square / self.weight
        wanted = mean + deviations * sqrt(max(0.0, square - mean**2))
        return ceil(wanted - _ROUNDING) if wanted >= 0.5 else 0

    def _close_windows(self, now: float) -> None:
        ended = int((now - self.began_at) / self.window_s)
        if ended <= 0:
            return
        kept = self.memory**ended
        latest = self.memory ** (ended - 1) * (1 - self.memory)
        self.weight = kept * self.weight + 1 - kept
        self.total = kept * self.total + latest * self.count
        self.square = kept * self.square + latest * self.count**2
        self.count = 0
        self.began_at += ended * self.window_s
