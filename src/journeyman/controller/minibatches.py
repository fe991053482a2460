"""A step's batch as several optimiser updates, and their reports as one."""

from collections.abc import Sequence
from itertools import groupby

from journeyman.trainer import StepMetrics
from journeyman.types import Batch, Sample

MEANS = ("loss", "entropy", "mean_logprob", "clip_fraction", "mean_ratio", "gradient_norm")
LAST = ("step", "learning_rate")


def minibatches(batch: Batch, count: int) -> list[Batch]:
    """At most `count` parts in the batch's order, of about as many samples each.

    A group stays whole: its advantages balance each other, and its samples share prefixes.
    """
    groups = [list(samples) for _, samples in groupby(batch.samples, lambda s: s.group)]
    parts: list[list[Sample]] = [[] for _ in range(count)]
    seen = 0
    for group in groups:
        middle = seen + len(group) / 2
        parts[int(middle * count / len(batch.samples))] += group
        seen += len(group)
    return [Batch(step=batch.step, samples=tuple(part)) for part in parts if part]


def mean_metrics(updates: Sequence[StepMetrics]) -> dict[str, float]:
    """One report: means weighed by sampled tokens, largest differences, sums of the rest."""
    reports = [update.model_dump(exclude_none=True) for update in updates]
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for report in reports for name in report):
        having = [report for report in reports if name in report]
        values = [float(report[name]) for report in having]
        if name in LAST:
            merged[name] = values[-1]
        elif name.startswith("max_"):
            merged[name] = max(values)
        elif name in MEANS:
            merged[name] = _mean(values, [report["tokens"] for report in having])
        elif name == "mean_logprob_difference":
            merged[name] = _mean(values, [report["parity_tokens"] for report in having])
        else:
            merged[name] = sum(values)
    return merged


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
