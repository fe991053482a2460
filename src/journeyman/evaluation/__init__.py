"""Solve rates with honest intervals, and the report of a run."""

from journeyman.evaluation.evaluate import (
    Evaluation,
    Outcome,
    TaskOutcome,
    evaluate,
    gain,
    summarise,
)
from journeyman.evaluation.statistics import Interval, paired_difference, pass_at_k, rate

__all__ = [
    "Evaluation",
    "Interval",
    "Outcome",
    "TaskOutcome",
    "evaluate",
    "gain",
    "paired_difference",
    "pass_at_k",
    "rate",
    "summarise",
]
