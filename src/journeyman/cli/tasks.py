"""`journeyman tasks`: build task sets from pinned open-source projects, and look at them."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from journeyman.config.home import home_dir
from journeyman.observe import Progress
from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.service.launch import running_service
from journeyman.tasks.factory import SPLITS, Plan, Summary
from journeyman.tasks.factory import build as build_set
from journeyman.tasks.harbor import load_tasks
from journeyman.tasks.projects import SMALL, load_projects
from journeyman.tasks.size import EpisodeSize
from journeyman.types import Split, UserError

WANTED: dict[Split, int] = {"warm": 400, "train": 240, "held_out": 120}
WANTED_SMALL: dict[Split, int] = {"warm": 4, "train": 4, "held_out": 4}
MODEL = "smollm2-135m"


def register(app: typer.Typer) -> None:
    """Add the `tasks` commands to the application."""
    tasks = typer.Typer(help="Build task sets and look at them.", no_args_is_help=True)
    tasks.command("build")(build)
    tasks.command("show")(show)
    app.add_typer(tasks, name="tasks")


def build(
    *,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the set [default: by name, below the home].")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Twelve tasks of two small projects, in a minute.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=3, help="At most about so many tasks in all.")
    ] = None,
    projects: Annotated[str, typer.Option(help="Only these projects, separated by commas.")] = "",
    seed: Annotated[int, typer.Option(help="Chooses faults and splits.")] = 1,
    driver: Annotated[
        str, typer.Option(help="Sandbox driver: gvisor, qemu, bubblewrap, or auto.")
    ] = "auto",
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint whose tokenizer measures episodes.")
    ] = None,
) -> None:
    """Download projects, break their functions, keep the faults that their tests notice."""
    names = tuple(name.strip() for name in projects.split(",") if name.strip())
    chosen = load_projects(names or (SMALL if small else ()))
    wanted = dict(WANTED_SMALL if small else WANTED)
    if limit is not None:
        total = sum(wanted.values())
        wanted = {split: max(1, limit * count // total) for split, count in wanted.items()}
    target = out or home_dir() / "tasks" / ("small" if small else "quickstart")
    model_dir = model or home_dir() / "models" / MODEL
    if not (model_dir / "tokenizer.json").is_file():
        raise UserError(f"no tokenizer in {model_dir}", f"Run: journeyman model fetch {MODEL}")
    plan = Plan(chosen, wanted, seed, target, home_dir() / "build" / "tasks")
    summary = asyncio.run(_build(plan, driver, EpisodeSize(model_dir)))
    counts = ", ".join(f"{summary.total(split)} {split}" for split in SPLITS)
    typer.echo(f"{target}: {counts}", err=True)
    typer.echo(
        json.dumps(
            {
                "directory": str(target),
                "counts": summary.counts,
                "screened": summary.screened,
                "rejected": dict(summary.rejected.most_common()),
                "seconds": {name: round(value, 1) for name, value in summary.seconds.items()},
            }
        )
    )


async def _build(plan: Plan, driver: str, size: EpisodeSize) -> Summary:
    async with running_service(driver) as url, SandboxClient(url) as sandboxes:
        with Progress() as progress:
            return await build_set(plan, sandboxes, size, progress)


def show(
    directory: Annotated[Path, typer.Argument(help="A task directory or a set of them.")],
) -> None:
    """Check task directories; print a line for each and how many there are of each split."""
    tasks = load_tasks(directory)
    for task in tasks:
        typer.echo(f"{task.split}\t{task.id}")
    counts = Counter(task.split for task in tasks)
    typer.echo(", ".join(f"{count} {split}" for split, count in sorted(counts.items())), err=True)
