"""Which of a task set's tasks a run uses. Fixed by seed and size, never by what a model solves."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest

from journeyman.types import Split, Task, UserError


def select(tasks: Sequence[Task], split: Split, count: int, seed: int) -> list[Task]:
    """`count` tasks of a split, spread evenly over projects, in an order of their own.

    Raises UserError if there are fewer.
    """
    ordered = _ordered(tasks, split, seed)
    if len(ordered) < count:
        raise _too_few(split, len(ordered), count)
    return ordered[:count]


def select_train(tasks: Sequence[Task], count: int, seed: int, *, warm: int) -> list[Task]:
    """`count` tasks for reinforcement: the training tasks, then those of the warm-start tasks
    that are not among the first `warm`. Raises UserError if these are fewer.
    """
    candidates = _ordered(tasks, "train", seed) + _ordered(tasks, "warm", seed)[warm:]
    if len(candidates) < count:
        raise _too_few("train", len(candidates), count)
    return candidates[:count]


def _too_few(split: Split, found: int, wanted: int) -> UserError:
    return UserError(
        f"the task set has {found} {split} tasks, the run asks for {wanted}",
        "build a larger set with `journeyman tasks build`, or ask for fewer",
    )


def _ordered(tasks: Sequence[Task], split: Split, seed: int) -> list[Task]:
    candidates = [task for task in tasks if task.split == split]
    by_project: dict[str, list[Task]] = defaultdict(list)
    for task in sorted(candidates, key=lambda task: _draw(task, seed)):
        by_project[task.provenance.project if task.provenance else ""].append(task)
    turns = zip_longest(*(by_project[project] for project in sorted(by_project)))
    return [task for task in chain.from_iterable(turns) if task is not None]


def check_splits(tasks: Sequence[Task]) -> None:
    """Raise UserError if a project is in both training and held-out tasks."""
    projects: dict[bool, set[str]] = {True: set(), False: set()}
    for task in tasks:
        if task.provenance:
            projects[task.split == "held_out"].add(task.provenance.project)
    both = sorted(projects[True] & projects[False])
    if both:
        raise UserError(
            f"projects {', '.join(both)} are in both training and held-out tasks",
            "build the set again: held-out means never seen",
        )


def _draw(task: Task, seed: int) -> str:
    return hashlib.sha256(f"{seed}/{task.id}".encode()).hexdigest()
