"""What the commands `quickstart`, `learn` and `train` share."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from journeyman.config import load_config
from journeyman.flywheel import choose_tasks, model_path, open_run, run_job
from journeyman.types import UserError

Resume = Annotated[
    Path | None, typer.Option(help="Continue this run's folder, e.g. runs/quickstart.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value over the configuration; repeatable."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, show the configuration, do nothing.")
]
Runs = Annotated[Path, typer.Option(help="Folder of the runs' folders.")]


def train(
    source: str,
    overrides: list[str] | None,
    resume: Path | None,
    dry_run: bool,
    runs: Path,
    *,
    rename: bool,
) -> None:
    """Run the main job; the summary is the last line of stdout, one JSON object.

    With `rename` a taken name gets the next free number; else it is refused.
    """
    if resume and overrides:
        raise UserError(
            "--set has no effect with --resume: a run keeps the configuration it began with",
            "leave one of the two out",
        )
    config = load_config(source, overrides or ())
    if dry_run:
        model_path(config.model.checkpoint)
        tasks = choose_tasks(config)
        counts = {split: len(chosen) for split, chosen in tasks.by_split().items()}
        typer.echo(json.dumps({"config": config.model_dump(mode="json"), "tasks": counts}))
        return
    directory, config = open_run(config, runs, resume, rename=rename)
    try:
        typer.echo(json.dumps(asyncio.run(run_job(config, directory))))
    except asyncio.CancelledError:  # by SIGTERM; Ctrl-C arrives as KeyboardInterrupt
        raise SystemExit(143) from None
