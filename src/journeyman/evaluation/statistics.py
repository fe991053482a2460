"""Rates and differences with 95% intervals, bootstrapped by task.

Outcomes are arrays [tasks, samples] with 1.0 for a solved episode and 0.0 for any other, failed
ones included: the denominator is fixed before the first episode runs. Samples of one task are
not independent, so tasks are what is resampled (the cluster bootstrap; Field and Welsh 2007).
"""

from collections.abc import Sequence
from math import comb, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from journeyman.types import UserError, Value

Array = NDArray[np.float64]
RESAMPLES = 10_000
_Z95 = 1.959963984540054


class Interval(Value):
    """An estimate with its 95% interval, `low` ≤ `value` ≤ `high`."""

    value: float
    low: float
    high: float


def rate(outcomes: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The mean of outcomes [tasks, samples] in [0, 1].

    Where all tasks have the same mean a bootstrap would claim certainty; then the interval is
    Wilson's, with the tasks counted as the only observations.
    """
    means = _task_means(outcomes)
    if np.ptp(means) == 0:
        return _wilson(float(means[0]), len(means))
    return _bootstrap(means, seed, resamples)


def paired_difference(
    after: ArrayLike, before: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """mean(after) − mean(before) over the same tasks in the same order, [tasks, samples] each.

    Numbers of samples may differ. Where all tasks differ by the same amount, the interval is
    widened by the rule of three: up to 3/tasks of all tasks could behave otherwise.
    Raises UserError if the numbers of tasks differ.
    """
    first, second = _task_means(after), _task_means(before)
    if len(first) != len(second):
        raise UserError(
            f"cannot pair {len(first)} tasks with {len(second)}",
            "evaluate both on the same tasks",
        )
    differences = first - second
    if np.ptp(differences) == 0:
        value = float(differences[0])
        doubt = min(1.0, 3 / len(differences))
        return Interval(
            value=value, low=value - doubt * (1 + value), high=value + doubt * (1 - value)
        )
    return _bootstrap(differences, seed, resamples)


def pass_at_k(outcomes: ArrayLike, k: int, *, seed: int = 0) -> Interval:
    """The chance that at least one of k tries solves a task, mean over tasks.

    Per task the unbiased 1 − C(n−c, k) / C(n, k) of n samples with c solved (Chen et al. 2021,
    "Evaluating large language models trained on code"). Raises UserError if k > n.
    """
    solved = _matrix(outcomes)
    samples = solved.shape[1]
    if not 1 <= k <= samples:
        raise UserError(
            f"pass@{k} cannot be told from {samples} samples a task",
            f"choose k from 1 to {samples}, or draw more samples",
        )
    counts = solved.sum(axis=1).round().astype(int)
    chances = [[1 - comb(samples - int(c), k) / comb(samples, k)] for c in counts]
    return rate(chances, seed=seed)


def _matrix(outcomes: ArrayLike) -> Array:
    matrix = np.asarray(outcomes, dtype=np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise UserError(
            f"outcomes have shape {matrix.shape}, not [tasks, samples]",
            "evaluate at least one sample of at least one task",
        )
    if not ((matrix >= 0) & (matrix <= 1)).all():
        raise UserError("outcomes lie outside 0 to 1", "a failed episode counts 0, never NaN")
    return matrix


def _task_means(outcomes: ArrayLike) -> Array:
    means: Array = _matrix(outcomes).mean(axis=1)
    return means


def _bootstrap(values: Array, seed: int, resamples: int) -> Interval:
    """Percentile interval of the mean of values [tasks]."""
    tasks = len(values)
    dice = np.random.default_rng(seed)
    means: list[Array] = []
    chunk = max(1, 4_000_000 // tasks)
    for begin in range(0, resamples, chunk):
        size = min(chunk, resamples - begin)
        times_drawn = dice.multinomial(tasks, np.full(tasks, 1 / tasks), size=size)
        means.append(times_drawn @ values / tasks)
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    value = float(values.mean())
    return Interval(value=value, low=min(float(low), value), high=max(float(high), value))


def _wilson(value: float, observations: int) -> Interval:
    """Wilson's score interval of a rate."""
    scale = 1 + _Z95**2 / observations
    centre = (value + _Z95**2 / (2 * observations)) / scale
    spread = _Z95 / scale
    spread *= sqrt(value * (1 - value) / observations + _Z95**2 / (4 * observations**2))
    low, high = max(0.0, centre - spread), min(1.0, centre + spread)
    return Interval(value=value, low=min(low, value), high=max(high, value))


def outcomes_matrix(rewards: Sequence[Sequence[float | None]]) -> Array:
    """[tasks, samples] of 1.0 where the reward is 1 and 0.0 elsewhere (also where it is None)."""
    return _matrix([[float(reward == 1.0) for reward in task] for task in rewards])
