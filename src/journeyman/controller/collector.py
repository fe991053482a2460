"""Running the groups of one step: leased → running → graded, machine failures replaced."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from journeyman.controller.advantages import Group
from journeyman.store import Lease, Ledger
from journeyman.types import Episode, FailureKind, JourneymanError, Task

AttemptFunction = Callable[[Task, str, int], Awaitable[Episode]]
"""(task, group, index) → one graded episode of the current policy. Infra failures come back in
the episode; a bug raises."""


class Collector:
    """Consumes leases, produces graded groups; waits on the slowest episode of a group."""

    def __init__(
        self,
        attempt: AttemptFunction,
        ledger: Ledger,
        *,
        group_size: int,
        infra_retries: int,
    ) -> None:
        self._attempt = attempt
        self._ledger = ledger
        self._group_size = group_size
        self._infra_retries = infra_retries

    async def collect(self, work: Sequence[tuple[Lease, Task]]) -> list[tuple[Lease, Group]]:
        """All groups at once; the first bug cancels the rest and is raised."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._group(lease, task)) for lease, task in work]
        return [(lease, task.result()) for (lease, _), task in zip(work, running, strict=True)]

    async def _group(self, lease: Lease, task: Task) -> Group:
        await asyncio.to_thread(self._ledger.running, lease)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._episode(lease, task, index))
                for index in range(self._group_size)
            ]
        episodes = tuple(task.result() for task in running)
        await asyncio.to_thread(self._ledger.graded, lease, episodes)
        return Group(id=lease.group, episodes=episodes)

    async def _episode(self, lease: Lease, task: Task, index: int) -> Episode:
        """Only the episode that a machine ended is run again; the others of its group are kept."""
        for _ in range(self._infra_retries + 1):
            episode = await self._attempt(task, lease.group, index)
            if episode.failure is not None and episode.failure.kind == FailureKind.BUG:
                raise JourneymanError(
                    f"episode {episode.id} met a bug: {episode.failure.detail}",
                    "the run can be resumed once it is mended",
                )
            if episode.failure is None or episode.failure.kind != FailureKind.INFRA:
                break
        return episode
