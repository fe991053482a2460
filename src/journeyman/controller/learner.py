"""The trainer and the engine on Ray, as the main loop sees them.

Directories are absolute: the actors may live in other working directories.
"""

from pathlib import Path
from typing import Any

from journeyman.controller.actors import failures_named
from journeyman.types import Batch, PolicyVersion


class RayLearner:
    """Every call ends when the actors have done it. One loss per learner object."""

    def __init__(self, trainer: Any, engine: Any, loss: str) -> None:
        self._trainer = trainer
        self._engine = engine
        self._loss = loss

    async def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        with failures_named("the trainer"):
            metrics = await self._trainer.step.remote(batch, self._loss, learning_rate)
        figures = metrics.model_dump(exclude_none=True)
        return {f"train_{name}": float(value) for name, value in figures.items()}

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
