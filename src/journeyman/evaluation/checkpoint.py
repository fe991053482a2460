"""Evaluate a checkpoint on a directory of tasks, with everything that needs running."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from journeyman.chat import ChatFormat
from journeyman.config import AgentConfig, EngineConfig
from journeyman.episodes import Arena, Attempt, open_arena
from journeyman.evaluation.evaluate import Evaluation, evaluate
from journeyman.inference import ChatService, Engine
from journeyman.observe import Progress, Stage
from journeyman.sandbox.service.launch import running_service
from journeyman.store import Store
from journeyman.types import Episode, Task, UserError

_FILES = ("config.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True)
class Settings:
    """How to evaluate: what `journeyman eval` takes beside tasks and checkpoint."""

    samples: int = 4
    temperature: float = 1.0
    max_concurrency: int = 16
    driver: str = "auto"
    engine: EngineConfig = field(default_factory=EngineConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)


def require_checkpoint(directory: Path) -> Path:
    """The directory. Raises UserError naming what a Hugging Face checkpoint lacks."""
    if not directory.is_dir():
        raise UserError(
            f"there is no checkpoint directory {directory}",
            "give the directory of a Hugging Face checkpoint, or run: "
            "journeyman model fetch smollm2-135m",
        )
    lacking = [name for name in _FILES if not (directory / name).is_file()]
    if lacking:
        raise UserError(
            f"the checkpoint {directory} lacks {', '.join(lacking)}",
            "copy it again, whole; it must hold " + ", ".join(_FILES),
        )
    return directory


async def evaluate_checkpoint(
    tasks: Sequence[Task], checkpoint: Path, run: str, store: Store, settings: Settings
) -> Evaluation:
    """Evaluate in this process, with a sandbox service as its child. Episodes go to the store as
    run `run`. Raises UserError for a bad checkpoint or when no sandbox can be started here."""
    require_checkpoint(checkpoint)
    chat = ChatFormat.load(checkpoint)
    with Progress() as progress:
        async with running_service(settings.driver) as url:
            with progress.stage("load the checkpoint", 1, "model") as stage:
                engine = await asyncio.to_thread(_load, checkpoint, settings)
                stage.advance()
            try:
                service = ChatService(engine, chat)
                opened = open_arena(
                    service,
                    chat,
                    url,
                    agent=settings.agent,
                    concurrency=settings.max_concurrency,
                    store=store,
                )
                total = len(tasks) * settings.samples
                async with opened as arena:
                    with progress.stage("evaluate", total, "episodes") as stage:
                        return await _evaluate(
                            arena, tasks, run=run, store=store, settings=settings, stage=stage
                        )
            finally:
                engine.close()


def _load(checkpoint: Path, settings: Settings) -> Engine:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return Engine(
        checkpoint,
        backend=settings.engine.backend,
        kv_tokens=settings.engine.kv_tokens,
        max_sequences=settings.engine.max_sequences,
    )


async def _evaluate(
    arena: Arena,
    tasks: Sequence[Task],
    *,
    run: str,
    store: Store,
    settings: Settings,
    stage: Stage,
) -> Evaluation:
    solved = 0

    async def attempt(task: Task, sample: int) -> Episode:
        nonlocal solved
        this = Attempt(
            kind="held_out",
            group=f"{run}/{task.id}",
            index=sample,
            temperature=settings.temperature,
        )
        episode = await arena.attempt(task, this)
        await asyncio.to_thread(store.save_episode, episode, run)
        solved += episode.verdict is not None and episode.verdict.reward == 1.0
        stage.note(f"{solved} solved")
        return episode

    return await evaluate(
        tasks,
        settings.samples,
        attempt,
        max_concurrency=settings.max_concurrency,
        stage=stage,
    )
