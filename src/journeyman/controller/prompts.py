"""Which task is attempted when: a pure function of the seed, so that a resumed run agrees."""

import random
from collections.abc import Sequence

from journeyman.types import Task, Value


class Prompt(Value):
    """One use of a task as a prompt. Each epoch uses every task exactly once."""

    epoch: int
    task: Task

    @property
    def group(self) -> str:
        """The id of the group of episodes that answers this prompt."""
        return f"{self.task.id}@{self.epoch}"


class PromptOrder:
    """Epoch after epoch over the tasks, each in an order of its own."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = sorted(tasks, key=lambda task: task.id)
        self._seed = seed

    def all(self) -> list[Prompt]:
        """Every prompt of the first epoch."""
        return self.take(0, len(self._tasks))

    def take(self, start: int, count: int) -> list[Prompt]:
        """Prompts number `start` to `start + count`, counted over all epochs."""
        size = len(self._tasks)
        return [
            Prompt(epoch=number // size, task=self._epoch(number // size)[number % size])
            for number in range(start, start + count)
        ]

    def _epoch(self, epoch: int) -> list[Task]:
        # random.Random hashes a string seed with sha512: stable across processes and machines.
        order = list(self._tasks)
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order
