"""Tell how many of a directory's tasks a checkpoint solves."""

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from journeyman.config import AgentConfig, EngineConfig, home_dir
from journeyman.evaluation.evaluate import Evaluation
from journeyman.store import Store
from journeyman.types import UserError


def register(app: typer.Typer) -> None:
    """Add `journeyman eval`."""
    app.command("eval")(evaluate_command)


def evaluate_command(
    *,
    tasks: Annotated[Path, typer.Option(help="A directory of Harbor tasks, or one task.")],
    checkpoint: Annotated[
        Path, typer.Option(help="A Hugging Face checkpoint directory, or a fetched model's name.")
    ],
    samples: Annotated[int, typer.Option(min=1, help="Episodes of each task.")] = 4,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on stdout.")
    ] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many tasks, by id.")
    ] = None,
    max_concurrency: Annotated[
        int, typer.Option(min=1, help="Episodes that run at the same time.")
    ] = 16,
    driver: Annotated[
        str, typer.Option(help="Of the sandboxes: gvisor, qemu, bubblewrap (weaker), or auto.")
    ] = "auto",
    backend: Annotated[str, typer.Option(help="Of the engine: native, torch, or auto.")] = "auto",
    tokens: Annotated[int, typer.Option(min=256, help="Most tokens of one episode.")] = 768,
    reply_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one reply.")] = 144,
    turns: Annotated[int, typer.Option(min=1, help="Most replies of one episode.")] = 6,
    store: Annotated[
        str | None, typer.Option(help="Store URL for the episodes; default: SQLite at home.")
    ] = None,
) -> None:
    """Tell how many of a directory's tasks a checkpoint solves.

    Every sample counts: failed episodes are not solved, and are shown by kind.
    """
    # Imported here: they pull in torch, which checking the arguments need not wait for.
    from journeyman.evaluation.checkpoint import (  # noqa: PLC0415
        Settings,
        evaluate_checkpoint,
        require_checkpoint,
    )
    from journeyman.tasks.harbor import load_tasks  # noqa: PLC0415

    if not tasks.is_dir():
        raise UserError(f"there is no directory {tasks}", "name a directory of Harbor tasks")
    directory = require_checkpoint(_checkpoint(checkpoint))
    loaded = sorted(load_tasks(tasks), key=lambda task: task.id)[:limit]
    if not loaded:
        raise UserError(
            f"there are no tasks in {tasks}", "each is a directory with a task.toml in it"
        )
    settings = Settings(
        samples=samples,
        temperature=temperature,
        max_concurrency=max_concurrency,
        driver=driver,
        engine=EngineConfig(backend=_backend(backend)),
        agent=AgentConfig(tokens=tokens, reply_tokens=reply_tokens, turns=turns),
    )
    opened = Store(store)
    try:
        run = _new_run(opened, tasks, directory, samples, temperature)
        evaluation = asyncio.run(evaluate_checkpoint(loaded, directory, run, opened, settings))
        opened.save_evaluation(run, "eval", 0, evaluation)
    finally:
        opened.close()
    _tell(evaluation, run, as_json=as_json)


def _checkpoint(given: Path) -> Path:
    """A directory as given, or a fetched model of that name."""
    fetched = home_dir() / "models" / given
    return fetched if not given.exists() and fetched.is_dir() else given


def _backend(name: str) -> Literal["auto", "native", "torch"]:
    for known in ("auto", "native", "torch"):
        if name == known:
            return known
    raise UserError(f"no engine backend is called {name!r}", "choose auto, native or torch")


def _new_run(store: Store, tasks: Path, checkpoint: Path, samples: int, temperature: float) -> str:
    name = time.strftime("eval-%Y%m%d-%H%M%S", time.gmtime()) + f"-{time.time_ns() % 1000:03}"
    config = {
        "tasks": str(tasks.resolve()),
        "model": {"checkpoint": str(checkpoint.resolve())},
        "samples": samples,
        "temperature": temperature,
    }
    store.create_run(name, config)
    return name


def _tell(evaluation: Evaluation, run: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(evaluation.summary()))
        return
    typer.echo(
        f"{evaluation.solved:.1%} of {evaluation.episodes} episodes solved "
        f"(95% interval {evaluation.low:.1%} to {evaluation.high:.1%}); run {run}"
    )
    for kind, count in evaluation.failures.items():
        typer.echo(f"  {count} ended by {kind} failures")
