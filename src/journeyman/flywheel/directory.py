"""`runs/<name>`: what a run leaves on disk beside the store."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from journeyman.config import RunConfig, build_config
from journeyman.types import UserError


class RunDirectory:
    """Files are written whole or not at all. One process at a time holds a run."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.name = self.root.name
        self.checkpoint = self.root / "checkpoint"
        """The last policy, as Transformers opens it."""
        self.training = self.root / "training"
        """Full training states."""

    @classmethod
    def create(cls, parent: Path, config: RunConfig) -> "RunDirectory":
        """Raises UserError if there is a run of that name already."""
        directory = cls(parent / config.name)
        try:
            directory.root.mkdir(parents=True)
        except FileExistsError:
            raise UserError(
                f"there is a run {directory.root} already",
                f"continue it with --resume {directory.root}, or choose another --set name=NAME",
            ) from None
        directory.write("config.json", config.model_dump_json(indent=2, exclude_unset=True))
        return directory

    @classmethod
    def open(cls, root: Path) -> tuple["RunDirectory", RunConfig]:
        """An existing run and the configuration it was started with."""
        directory = cls(root)
        path = directory.root / "config.json"
        if not path.is_file():
            raise UserError(f"{root} is no run: {path} is missing", "give a folder under runs/")
        return directory, build_config(json.loads(path.read_text()), str(path))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run; a second process is refused."""
        with (self.root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another process works on {self.root}", "wait for it, or stop it"
                ) from None
            yield

    @property
    def summary(self) -> str | None:
        """What a finished run said, one JSON object; None of a run that is not finished."""
        path = self.root / "summary.json"
        return path.read_text() if path.is_file() else None

    def finish(self, summary: str) -> None:
        """The run is over: of its training states only the last step's stays."""
        self.write("summary.json", summary)
        steps = sorted(path.name for path in self.training.glob("step-*"))
        self.drop_training(keep=steps[-1:])

    def drop_training(self, keep: Collection[str]) -> None:
        """Remove the training states that are not named, and what a kill left half-written."""
        for path in self.training.glob("*"):
            if path.name not in keep:
                shutil.rmtree(path)

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


class Stopwatch:
    """Training seconds that add up over resumed processes."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        path = directory.root / "seconds.json"
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}
        self._started: dict[str, tuple[float, float]] = {}

    @contextmanager
    def running(self, phase: str) -> Iterator[None]:
        """Add the block's wall time to the phase, however it ends short of kill -9."""
        self._started[phase] = self.seconds.get(phase, 0.0), time.monotonic()
        try:
            yield
        finally:
            self.keep()
            del self._started[phase]

    def keep(self) -> None:
        """Write the seconds so far: what a kill -9 cannot take."""
        for phase, (before, started) in self._started.items():
            self.seconds[phase] = before + time.monotonic() - started
        self._directory.write("seconds.json", json.dumps(self.seconds))
