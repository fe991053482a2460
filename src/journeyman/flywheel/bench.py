"""Where a reinforcement step's time goes, and how fast its parts are alone."""

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from journeyman.config import RunConfig, load_config
from journeyman.controller.actors import stop_ray
from journeyman.flywheel.directory import RunDirectory
from journeyman.flywheel.inputs import choose_tasks, model_path
from journeyman.flywheel.job import Job
from journeyman.flywheel.services import Services, open_services
from journeyman.inference.bench import decode_throughput
from journeyman.observe import Progress
from journeyman.sandbox.client import SandboxClient
from journeyman.store import Store
from journeyman.trainer.bench import train_throughput

STAGES = ("generate", "sandbox", "grade", "train", "other", "total")
FORKS = 20


async def bench_loop(
    checkpoint: Path | None, steps: int, overrides: list[str], progress: Progress
) -> dict[str, Any]:
    """`steps` reinforcement steps of the quickstart, timed by stage, then engine, trainer and
    fork alone.

    Steps start from `checkpoint`, or from a short warm start when there is none: a policy that
    solves nothing has no steps. Nothing of it is kept.
    """
    start = [f"model.checkpoint={checkpoint}"]
    if checkpoint is None:
        start = ["tasks.warm=128", "warm_start.epochs=4", "warm_start.learning_rate=4e-4"]
        start += ["warm_start.episodes_per_step=8"]
    config = load_config("bench", [*start, f"reinforcement.steps={steps}", *overrides])
    model_dir = model_path(config.model.checkpoint)
    with tempfile.TemporaryDirectory(prefix="journeyman-bench-") as folder:
        store = Store(f"sqlite:///{folder}/store.db")
        try:
            dump = Path(folder) / "dump"
            async with open_services(config, model_dir, dump, store, progress) as services:
                step_s = await _steps(config, Path(folder), services, progress)
                fork_s = await _fork_first_exec(config, services)
        finally:
            stop_ray()
            store.close()
    with progress.stage("engine and trainer alone", 2, "measured") as stage:
        decode = await asyncio.to_thread(decode_throughput, model_dir)
        stage.advance()
        train = await asyncio.to_thread(train_throughput, model_dir)
        stage.advance()
    return {
        "step_s": step_s,
        "decode_tok_s": round(decode, 1),
        "train_tok_s": round(train, 1),
        "fork_first_exec_s": fork_s,
        "steps": steps,
    }


async def _steps(
    config: RunConfig, folder: Path, services: Services, progress: Progress
) -> dict[str, float]:
    """Mean seconds of a step by stage."""
    directory = RunDirectory.create(folder, config)
    services.store.create_run(directory.name, config.model_dump(mode="json"))
    job = Job(config, directory, choose_tasks(config), services, progress)
    await job.warm_start()
    await job.reinforce()
    rows = {
        stage: [value for _, value in services.store.metric(directory.name, f"step_s/{stage}")]
        for stage in STAGES
    }
    return {stage: round(fmean(values), 2) if values else 0.0 for stage, values in rows.items()}


async def _fork_first_exec(config: RunConfig, services: Services) -> float:
    """Median seconds from asking for a sandbox until `true` has run in it; no pool."""
    task = choose_tasks(config).held_out[0]
    environment = await services.arena.environment(task)
    seconds = []
    async with SandboxClient(services.sandbox_url) as sandboxes:
        for _ in range(FORKS):
            started = time.perf_counter()
            sandbox = await sandboxes.create(environment)
            await sandbox.exec(["true"])
            seconds.append(time.perf_counter() - started)
            await sandbox.close()
    return round(median(seconds), 4)
