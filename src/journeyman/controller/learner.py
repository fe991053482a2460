"""The trainer and the engine on Ray, as the main loop sees them.

Directories are absolute: the actors may live in other working directories.
"""

from pathlib import Path
from typing import Any

from journeyman.controller.actors import failures_named
from journeyman.controller.minibatches import mean_metrics, minibatches
from journeyman.types import Batch, PolicyVersion


class RayLearner:
    """Every call ends when the actors have done it. One loss per learner object; a step is
    `updates` optimiser updates, each on a share of the batch's groups."""

    def __init__(self, trainer: Any, engine: Any, loss: str, *, updates: int = 1) -> None:
        self._trainer = trainer
        self._engine = engine
        self._loss = loss
        self._updates = updates

    async def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        with failures_named("the trainer"):
            metrics = [
                await self._trainer.step.remote(part, self._loss, learning_rate)
                for part in minibatches(batch, self._updates)
            ]
        return {f"train_{name}": value for name, value in mean_metrics(metrics).items()}

    async def publish(self) -> PolicyVersion:
        """The weights pass through Ray's object store; the engine checks their digest."""
        with failures_named("the trainer or the engine"):
            state, version = self._trainer.weights.options(num_returns=2).remote()
            await self._engine.load_weights.remote(state, version)
            published: PolicyVersion = await version
        return published

    async def save(self, directory: Path) -> None:
        with failures_named("the trainer"):
            await self._trainer.save.remote(str(directory))

    async def load(self, directory: Path) -> None:
        with failures_named("the trainer"):
            await self._trainer.load.remote(str(directory))

    async def export(self, directory: Path) -> None:
        """A checkpoint that Transformers opens."""
        with failures_named("the trainer"):
            await self._trainer.export.remote(str(directory))
