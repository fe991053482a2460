"""The small task set that `make setup` builds, and one client of the shared sandbox service."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from journeyman.config.home import home_dir
from journeyman.sandbox.client import SandboxClient
from journeyman.tasks.harbor import load_tasks
from journeyman.types import Task

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Run a coroutine on the loop that the client lives on."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="session")
def sandboxes(sandbox_service: str, run: Run) -> Iterator[SandboxClient]:
    client = SandboxClient(sandbox_service)
    yield client
    run(client.aclose())


@pytest.fixture(scope="session")
def small_set() -> list[Task]:
    """Tasks of two small projects."""
    directory = home_dir() / "tasks" / "small"
    if not directory.is_dir():
        pytest.fail(f"there is no {directory}; run `make setup`")
    return load_tasks(directory)


@pytest.fixture(scope="session")
def task(small_set: list[Task]) -> Task:
    """A held-out task of inflection."""
    return next(task for task in small_set if task.split == "held_out")
