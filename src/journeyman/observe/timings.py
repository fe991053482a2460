"""Where the wall time of a step went, when many activities run at once.

At every instant the passing time is shared among the stages in proportion to how many
activities are inside each of them; while none is inside any, it goes to `other`. So with 64
episodes of which 48 wait for tokens and 16 for a sandbox, a second adds 0.75 s to `generate`
and 0.25 s to `sandbox`. The shares and `other` add up to the wall time exactly, which sums of
each activity's own durations do not. `busy_s` tells for how long a stage had anyone in it.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from journeyman.types.value import Value


class Timings(Value):
    """Seconds. `share_s` and `other_s` add up to `total_s`."""

    total_s: float
    share_s: dict[str, float]
    other_s: float
    busy_s: dict[str, float]


class StageTimer:
    """Measures stages that overlap, from any thread or coroutine.

    An activity belongs to one stage at a time: a block inside another block of the same
    activity counts in both.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._active: Counter[str] = Counter()
        self._share: defaultdict[str, float] = defaultdict(float)
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._other = 0.0
        self._begun = self._last = clock()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The caller is in stage `name` for the length of the block."""
        with self._lock:
            self._account()
            self._active[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._account()
                self._active[name] -= 1

    def lap(self) -> Timings:
        """The timings since the last lap, or since the start; what is active stays so."""
        with self._lock:
            self._account()
            timings = Timings(
                total_s=self._last - self._begun,
                share_s=dict(self._share),
                other_s=self._other,
                busy_s=dict(self._busy),
            )
            self._share.clear()
            self._busy.clear()
            self._other = 0.0
            self._begun = self._last
        return timings

    def _account(self) -> None:
        now = self._clock()
        passed, self._last = now - self._last, now
        inside = sum(self._active.values())
        if not inside:
            self._other += passed
            return
        for name, count in self._active.items():
            if count:
                self._share[name] += passed * count / inside
                self._busy[name] += passed
