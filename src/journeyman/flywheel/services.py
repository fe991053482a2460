"""Everything a run needs running: sandboxes, engine and trainer on Ray, the agent server."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from journeyman.chat import ChatFormat
from journeyman.config import RunConfig
from journeyman.controller.actors import RaySampler, engine_actor, start_ray, trainer_actor
from journeyman.controller.learner import RayLearner
from journeyman.episodes import Arena, open_arena
from journeyman.observe import Progress, StageTimer
from journeyman.sandbox.service.launch import running_service
from journeyman.store import Store
from journeyman.types import Sampler


@dataclass(frozen=True)
class Services:
    """What is running. `arena` samples from the engine."""

    config: RunConfig
    engine: Any
    trainer: Any
    chat: ChatFormat
    arena: Arena
    sandbox_url: str
    store: Store
    timer: StageTimer

    def learner(self, loss: str) -> RayLearner:
        """The trainer stepping on that loss, with the engine it publishes to."""
        updates = self.config.reinforcement.updates_per_step if loss == "policy" else 1
        return RayLearner(self.trainer, self.engine, loss, updates=updates)

    def open_arena(self, sampler: Sampler) -> AbstractAsyncContextManager[Arena]:
        """The same server and sandboxes with another sampler."""
        return _arena(self.config, sampler, self.chat, self.sandbox_url, self.store, self.timer)


def _arena(
    config: RunConfig,
    sampler: Sampler,
    chat: ChatFormat,
    sandbox_url: str,
    store: Store,
    timer: StageTimer,
) -> AbstractAsyncContextManager[Arena]:
    return open_arena(
        sampler,
        chat,
        sandbox_url,
        agent=config.agent,
        concurrency=config.sandbox.concurrency,
        timer=timer,
        store=store,
    )


@asynccontextmanager
async def open_services(
    config: RunConfig, model_dir: Path, dump_dir: Path, store: Store, progress: Progress
) -> AsyncIterator[Services]:
    """Start all, the strongest sandbox driver first; stop all at the end, whatever happened."""
    timer = StageTimer()
    chat = ChatFormat.load(model_dir)
    async with AsyncExitStack() as stack:
        with progress.stage("start services", 3, "started") as stage:
            url = await stack.enter_async_context(running_service(config.sandbox.driver))
            stage.advance()
            await asyncio.to_thread(start_ray)
            _end_on_sigterm()
            engine = engine_actor(model_dir, config.engine)
            trainer = trainer_actor(
                model_dir, config.optimiser, config.seed, _policy(config, dump_dir)
            )
            await engine.ready.remote()
            stage.advance()
            arena = await stack.enter_async_context(
                _arena(config, RaySampler(engine), chat, url, store, timer)
            )
            stage.advance()
        yield Services(config, engine, trainer, chat, arena, url, store, timer)


def _end_on_sigterm() -> None:
    """A polite kill cancels the run, which cleans up as after Ctrl-C. Set once Ray is there: the
    handler that Ray brings prints a native trace and dies on the spot."""
    run = asyncio.current_task()
    if run is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.cancel)


def _policy(config: RunConfig, dump_dir: Path) -> dict[str, Any]:
    """The trainer's settings that belong to the policy loss."""
    reinforcement = config.reinforcement
    return {
        "learning_rate": reinforcement.learning_rate,
        "clip_ratio": (reinforcement.clip_low, reinforcement.clip_high),
        "temperature": reinforcement.temperature,
        "dump_dir": dump_dir,
    }
