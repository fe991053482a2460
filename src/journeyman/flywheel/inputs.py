"""What a run starts from: a model and the tasks it will use, checked before anything begins."""

from dataclasses import dataclass
from pathlib import Path

from journeyman.config import RunConfig, home_dir
from journeyman.controller.oracle import distinct
from journeyman.controller.selection import check_splits, select, select_train
from journeyman.tasks.harbor import load_tasks
from journeyman.types import Task, UserError


@dataclass(frozen=True)
class TaskSets:
    """The run's tasks, fixed before anything is trained."""

    warm: list[Task]
    train: list[Task]
    held_out: list[Task]

    def by_split(self) -> dict[str, list[Task]]:
        """Split → tasks."""
        return {"warm": self.warm, "train": self.train, "held_out": self.held_out}


def choose_tasks(config: RunConfig) -> TaskSets:
    """Load the task set and choose from it. Raises UserError for a set that will not do."""
    chosen = config.tasks
    tasks = distinct(load_tasks(task_set_dir(chosen.set)))
    check_splits(tasks)
    num_warm = chosen.warm if config.warm_start.epochs else 0
    num_train = chosen.train if config.reinforcement.steps else 0
    return TaskSets(
        warm=select(tasks, "warm", num_warm, config.seed),
        train=select_train(tasks, num_train, config.seed, warm=num_warm),
        held_out=select(tasks, "held_out", chosen.held_out, config.seed),
    )


def task_set_dir(name: str) -> Path:
    """A directory as given, or a set built under the home directory. Raises UserError."""
    for path in (Path(name), home_dir() / "tasks" / name):
        if path.is_dir():
            return path
    raise UserError(
        f"there is no task set {name!r}", f"`journeyman tasks build --name {name}` makes one"
    )


def model_path(name: str) -> Path:
    """A checkpoint directory as given, or a fetched model. Raises UserError."""
    for path in (Path(name), home_dir() / "models" / name):
        if (path / "config.json").is_file():
            return path.absolute()
    raise UserError(
        f"there is no model {name!r}: no config.json in {name} or {home_dir() / 'models' / name}",
        f"`journeyman model fetch {name}`, or give a checkpoint's directory",
    )


def newest_checkpoint(runs: Path) -> Path | None:
    """The exported policy of the run that finished last, if there is one."""
    found = [path.parent for path in runs.glob("*/checkpoint/config.json")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
