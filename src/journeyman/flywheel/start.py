"""Opening a run's folder and store, and running its job to the report."""

import json
import logging
from pathlib import Path
from typing import Any

from journeyman.config import RunConfig
from journeyman.controller.actors import stop_ray
from journeyman.evaluation.report import write_report
from journeyman.flywheel.directory import RunDirectory
from journeyman.flywheel.inputs import choose_tasks, model_path
from journeyman.flywheel.job import Job
from journeyman.flywheel.services import open_services
from journeyman.observe import Progress
from journeyman.store import Store
from journeyman.types import UserError

log = logging.getLogger(__name__)


def open_run(
    config: RunConfig, parent: Path, resume: Path | None, *, rename: bool
) -> tuple[RunDirectory, RunConfig]:
    """The folder to work in. With `rename` a taken name gets the next free number."""
    if resume is not None:
        return RunDirectory.open(resume)
    store = Store(config.store.url)
    try:
        taken = set(store.run_names())
    finally:
        store.close()
    name, number = config.name, 1
    while rename and ((parent / name).exists() or name in taken):
        number += 1
        name = f"{config.name}-{number}"
    config = config.model_copy(update={"name": name})
    choose_tasks(config)  # refuse a bad task set before anything is written
    return RunDirectory.create(parent, config), config


async def run_job(config: RunConfig, directory: RunDirectory) -> dict[str, Any]:
    """Run all phases that are not done and write the report. Returns the summary: of a finished
    run the one it had."""
    if directory.summary is not None:
        return dict(json.loads(directory.summary))
    store = Store(config.store.url)
    model_dir = model_path(config.model.checkpoint)
    try:
        with directory.held(), Progress() as progress:
            if directory.name not in store.run_names():
                store.create_run(directory.name, config.model_dump(mode="json"))
            tasks = choose_tasks(config)
            dump = directory.root / "dump"
            async with open_services(config, model_dir, dump, store, progress) as services:
                summary = await Job(config, directory, tasks, services, progress).run()
                write_report(store, directory.name, directory.root, services.chat.decode)
                directory.finish(json.dumps(summary))
                return summary
    except BaseException as error:
        if not isinstance(error, UserError):
            log.error("stopped; continue with --resume %s", directory.root)
        raise
    finally:
        stop_ray()
        store.close()
