"""Which task is attempted when: a function of the seed and of what the ledger holds, so that a
resumed run agrees."""

import random
from collections.abc import Mapping, Sequence

from journeyman.store import PastPrompt
from journeyman.types import Task, Value


class Prompt(Value):
    """One use of a task as a prompt. No epoch uses a task twice."""

    epoch: int
    task: Task


class PromptOrder:
    """Epoch after epoch over the tasks, each in an order of its own.

    With `skip_settled` an epoch leaves out tasks that the verifier had one answer for, to all
    episodes of the epoch before; what an epoch leaves out does not come back, until fewer than
    `fewest` tasks would be left: then all are tried again.
    """

    def __init__(
        self, tasks: Sequence[Task], seed: int, *, skip_settled: bool = False, fewest: int = 1
    ) -> None:
        self.tasks: Mapping[str, Task] = {
            task.id: task for task in sorted(tasks, key=lambda task: task.id)
        }
        self._seed = seed
        self._skip_settled = skip_settled
        self._fewest = fewest

    def take(self, count: int, past: Sequence[PastPrompt]) -> list[Prompt]:
        """The next prompts after those of the ledger."""
        used: dict[int, dict[str, bool]] = {}
        for each in past:
            used.setdefault(each.epoch, {})[each.prompt] = each.ended and not each.both_outcomes
        epoch = max(used, default=0)
        prompts: list[Prompt] = []
        while len(prompts) < count:
            taken = used.setdefault(epoch, {})
            left = [t for t in self._epoch(epoch, used.get(epoch - 1, {})) if t.id not in taken]
            for task in left[: count - len(prompts)]:
                prompts.append(Prompt(epoch=epoch, task=task))
                taken[task.id] = False
            epoch += 1
        return prompts

    def _epoch(self, epoch: int, before: Mapping[str, bool]) -> list[Task]:
        """`before`: the tasks of the epoch before, and whether each is settled."""
        order = list(self.tasks.values())
        # random.Random hashes a string seed with sha512: stable across processes and machines.
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        if self._skip_settled and epoch:
            open_ones = [task for task in order if before.get(task.id) is False]
            return open_ones if len(open_ones) >= self._fewest else order
        return order
