"""Run a fixed number of samples of a fixed set of tasks, and count every one of them."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from journeyman.evaluation.statistics import (
    Array,
    Interval,
    outcomes_matrix,
    paired_difference,
    rate,
)
from journeyman.observe import Stage
from journeyman.types import (
    Episode,
    Failure,
    FailureKind,
    InfraError,
    JourneymanError,
    StopReason,
    Task,
    UserError,
    Value,
    VerifierError,
)

Attempt = Callable[[Task, int], Awaitable[Episode]]
"""Run sample number n of a task to a graded episode."""


class Outcome(Value):
    """What became of one sample. `reward` None: there was no trustworthy verdict."""

    reward: float | None
    stop: StopReason
    failure: Failure | None = None
    episode: str | None = None
    """Its id in the store; None when no episode came about."""
    retries: int = 0


class TaskOutcome(Value):
    """All samples of one task, in order."""

    task: str
    samples: tuple[Outcome, ...]


class Evaluation(Value):
    """A solve rate with its 95% interval. Failed episodes are in the denominator."""

    solved: float
    episodes: int
    low: float
    high: float
    failures: dict[str, int]
    """Failure kind → number of samples that ended so."""
    retries: int
    tasks: tuple[TaskOutcome, ...]

    def summary(self) -> dict[str, Any]:
        """The numbers without the tasks."""
        return self.model_dump(include={"solved", "episodes", "low", "high", "failures"})

    def matrix(self) -> Array:
        """[tasks, samples], 1.0 where solved."""
        return outcomes_matrix([[s.reward for s in task.samples] for task in self.tasks])


async def evaluate(
    tasks: Sequence[Task],
    samples: int,
    attempt: Attempt,
    *,
    max_concurrency: int = 16,
    max_retries: int = 2,
    grace_s: float = 60.0,
    stage: Stage | None = None,
    seed: int = 0,
) -> Evaluation:
    """Evaluate `samples` attempts at each task, at most `max_concurrency` at once.

    Only infra failures are tried again, at most `max_retries` times each, then counted. An
    attempt that outlives its task's deadline by `grace_s` is ended and counts as one. Any other
    exception than the failure contract's is a bug and ends the evaluation.
    """
    if not tasks or samples < 1:
        raise UserError(
            f"nothing to evaluate: {len(tasks)} tasks × {samples} samples",
            "name a directory with tasks, and at least one sample",
        )
    twice = [task for task, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise UserError(f"tasks named more than once: {twice}", "give each task its own id")
    slots = asyncio.Semaphore(max_concurrency)

    async def one(task: Task, sample: int) -> Outcome:
        async with slots:
            outcome = await _sample(task, sample, attempt, max_retries, grace_s)
        if stage is not None:
            stage.advance()
        return outcome

    async with asyncio.TaskGroup() as running:
        pending = [[running.create_task(one(task, n)) for n in range(samples)] for task in tasks]
    done = [
        TaskOutcome(task=task.id, samples=tuple(entry.result() for entry in row))
        for task, row in zip(tasks, pending, strict=True)
    ]
    return summarise(done, seed=seed)


def summarise(tasks: Sequence[TaskOutcome], *, seed: int = 0) -> Evaluation:
    """Count outcomes; every task has the same number of samples."""
    matrix = outcomes_matrix([[s.reward for s in task.samples] for task in tasks])
    estimate = rate(matrix, seed=seed)
    outcomes = [outcome for task in tasks for outcome in task.samples]
    failures = Counter(o.failure.kind.value for o in outcomes if o.failure is not None)
    return Evaluation(
        solved=estimate.value,
        episodes=len(outcomes),
        low=estimate.low,
        high=estimate.high,
        failures=dict(sorted(failures.items())),
        retries=sum(outcome.retries for outcome in outcomes),
        tasks=tuple(tasks),
    )


def gain(after: Evaluation, before: Evaluation, *, seed: int = 0) -> Interval:
    """The paired difference of two evaluations of the same tasks in the same order."""
    if [task.task for task in after.tasks] != [task.task for task in before.tasks]:
        raise UserError(
            "the two evaluations are not of the same tasks", "evaluate both on one fixed set"
        )
    return paired_difference(after.matrix(), before.matrix(), seed=seed)


async def _sample(
    task: Task, sample: int, attempt: Attempt, max_retries: int, grace_s: float
) -> Outcome:
    for retries in range(max_retries + 1):
        outcome = await _once(task, sample, attempt, task.budget.deadline_s + grace_s)
        infra = outcome.failure is not None and outcome.failure.kind == FailureKind.INFRA
        if not infra or retries == max_retries:
            return outcome.model_copy(update={"retries": retries})
    raise AssertionError("unreachable: the last round returns")


async def _once(task: Task, sample: int, attempt: Attempt, deadline_s: float) -> Outcome:
    try:
        async with asyncio.timeout(deadline_s) as guard:
            episode = await attempt(task, sample)
    except TimeoutError:
        if not guard.expired():
            raise
        detail = f"sample {sample} of {task.id} did not end within {deadline_s:.0f} s"
        failure = Failure(kind=FailureKind.INFRA, cause="EpisodeHung", detail=detail)
        return Outcome(reward=None, stop=StopReason.FAILED, failure=failure)
    except (InfraError, VerifierError) as error:
        return Outcome(reward=None, stop=StopReason.FAILED, failure=error.failure())
    verdict = episode.verdict
    failure_ = episode.failure or (verdict.failure if verdict else None)
    if failure_ is None and (verdict is None or verdict.reward is None):
        failure_ = Failure(kind=FailureKind.VERIFIER, cause="NoVerdict", detail=episode.id)
    if failure_ is not None and failure_.kind == FailureKind.BUG:
        raise JourneymanError(f"episode {episode.id} met a bug: {failure_.cause}", failure_.detail)
    return Outcome(
        reward=verdict.reward if verdict else None,
        stop=episode.stop,
        failure=failure_,
        episode=episode.id,
    )
