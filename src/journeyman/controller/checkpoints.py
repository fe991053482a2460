"""Full training states on disk: which there are, which to restore, which to remove."""

import shutil
from pathlib import Path
from typing import Protocol


class Saveable(Protocol):
    """What a checkpoint is made from. Both calls are atomic and digest-checked."""

    async def save(self, directory: Path) -> None: ...

    async def load(self, directory: Path) -> None: ...


class Checkpoints:
    """`directory/step-00005` and so on. Two are kept: the newest and the one before it."""

    def __init__(self, directory: Path, every: int) -> None:
        self._directory = directory
        self._every = every

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        found = self._directory.glob("step-*")
        return sorted(
            int(path.name.removeprefix("step-"))
            for path in found
            if path.name.removeprefix("step-").isdigit()
        )

    async def maybe_save(self, step: int, learner: Saveable) -> None:
        """Save if `step` is one of those to be kept."""
        if step % self._every == 0:
            await self.save(step, learner)

    async def save(self, step: int, learner: Saveable) -> None:
        """Save the state after `step`; older ones go only when it is complete."""
        if step in self.steps():
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        await learner.save(self._path(step))
        for old in self.steps()[:-2]:
            shutil.rmtree(self._path(old))

    async def restore(self, learner: Saveable) -> int | None:
        """Load the newest; None if there is none and the learner stays as it is."""
        steps = self.steps()
        if not steps:
            return None
        await learner.load(self._path(steps[-1]))
        return steps[-1]

    def _path(self, step: int) -> Path:
        return self._directory / f"step-{step:05d}"
