"""Supervised learning of the oracle's episodes: the warm start, and reinforcement's controls."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from journeyman.config import WarmStartConfig
from journeyman.controller.oracle import oracle_sampler
from journeyman.controller.warm_start import schedule, supervised_batches
from journeyman.episodes import Arena
from journeyman.flywheel.services import Services
from journeyman.observe import Progress
from journeyman.types import Batch, Episode, Task

AttemptIn = Callable[[Arena, Task], Awaitable[Episode]]
"""One oracle attempt at a task in an arena, recorded in the store."""


class Supervised:
    """Replays the oracle once, then trains on what came of it as often as asked."""

    def __init__(
        self,
        services: Services,
        config: WarmStartConfig,
        seed: int,
        progress: Progress,
        *,
        attempt: AttemptIn,
        on_step: Callable[[int, dict[str, float]], Awaitable[None]],
    ) -> None:
        self._services = services
        self._learner = services.learner("supervised")
        self._config = config
        self._seed = seed
        self._progress = progress
        self._attempt = attempt
        self._on_step = on_step
        self._num_steps = 0

    async def replay(self, tasks: Sequence[Task]) -> list[Episode]:
        """The oracle's calls through the real agent and its real tools."""
        sampler = oracle_sampler(self._services.chat, tasks)
        async with self._services.open_arena(sampler) as arena:
            with self._progress.stage("replay oracle", len(tasks), "episodes") as stage:

                async def one(task: Task) -> Episode:
                    episode = await self._attempt(arena, task)
                    stage.advance()
                    return episode

                async with asyncio.TaskGroup() as group:
                    running = [group.create_task(one(task)) for task in tasks]
        return [task.result() for task in running]

    async def train(self, episodes: Sequence[Episode], epochs: int) -> None:
        """So many epochs with the whole learning-rate schedule."""
        batches = self._batches(episodes, epochs, self._seed)
        with self._progress.stage("warm start", len(batches), "steps") as stage:
            for batch in batches:
                rate = schedule(batch.step, len(batches), self._config.learning_rate)
                loss = await self._step(batch, rate)
                stage.note(f"loss {loss:.3f}")
                stage.advance()

    async def continue_for(self, episodes: Sequence[Episode], seconds: float) -> None:
        """Epoch after epoch at a tenth of the schedule's peak, for so much wall time."""
        rate = 0.1 * self._config.learning_rate
        deadline = time.monotonic() + seconds
        with self._progress.stage("supervised control", round(seconds), "seconds") as stage:
            epoch = 0
            while time.monotonic() < deadline:
                epoch += 1
                for batch in self._batches(episodes, 1, self._seed + epoch):
                    if time.monotonic() >= deadline:
                        break
                    loss = await self._step(batch, rate)
                    stage.note(f"loss {loss:.3f}")
                    stage.advance(round(seconds - deadline + time.monotonic()) - stage.done)

    async def save(self, directory: Path) -> None:
        """Keep the training state."""
        await self._learner.save(directory)

    async def load(self, directory: Path) -> None:
        """Take a kept state up again."""
        await self._learner.load(directory)

    def _batches(self, episodes: Sequence[Episode], epochs: int, seed: int) -> list[Batch]:
        return supervised_batches(
            episodes,
            epochs=epochs,
            episodes_per_step=self._config.episodes_per_step,
            seed=seed,
        )

    async def _step(self, batch: Batch, learning_rate: float) -> float:
        figures = await self._learner.step(batch, learning_rate)
        self._num_steps += 1
        await self._on_step(self._num_steps, figures)
        return figures["train_loss"]
