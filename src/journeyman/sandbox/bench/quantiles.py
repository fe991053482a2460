"""A sample of durations, told the same way everywhere."""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

from journeyman.types.value import Value


class Quantiles(Value):
    """In milliseconds, over `n` calls."""

    p50: float
    p95: float
    n: int


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """Raises ValueError without a single call."""
    if not seconds:
        raise ValueError("no call was timed")
    ordered = sorted(seconds)
    # The smallest value that at least 95% of the calls do not exceed.
    at = -(-95 * len(ordered) // 100) - 1
    return Quantiles(
        p50=round(1000 * statistics.median(ordered), 2),
        p95=round(1000 * ordered[at], 2),
        n=len(ordered),
    )


async def seconds_of(call: Callable[[], Awaitable[object]]) -> float:
    """How long one call took."""
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began
