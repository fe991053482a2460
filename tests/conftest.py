"""Order of the tests, and what the whole test run shares.

Fixtures here give what `make setup` provides. Where it is missing a test fails and says so: a
skipped test would hide a broken set-up.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from journeyman.config import home_dir
from journeyman.sandbox.service.launch import running_service
from journeyman.tasks.harbor import load_tasks
from journeyman.types import Task

# Test files of one name may stand in several folders (import mode importlib); what several files
# of a folder share lies beside them, and is found by these paths.
_HERE = Path(__file__).parent
_SHARED = [p for p in _HERE.rglob("*.py") if not p.name.startswith(("test_", "conftest", "__"))]
sys.path.extend(sorted({str(path.parent) for path in _SHARED}))

# A shell starts what it runs in the background deaf to Ctrl-C, and children inherit that; tests
# that press it need children that hear it.
signal.signal(signal.SIGINT, signal.default_int_handler)

PHASES = ("unit", "integration")
"""Cheap tests first, so that a broken line of code is told of in seconds."""

# A busy machine is no defect of the code under test; CI repeats the same examples every time.
hypothesis.settings.register_profile(
    "house", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_phase)


def _phase(item: pytest.Item) -> int:
    parts = item.path.parts
    return next((i for i, name in enumerate(PHASES) if name in parts), len(PHASES))


def pytest_report_header() -> str:
    return f"journeyman home: {home_dir()}"


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The fetched SmolLM2-135M-Instruct, a Hugging Face checkpoint directory."""
    path = home_dir() / "models" / "smollm2-135m"
    missing = [n for n in ("model.safetensors", "tokenizer.json") if not (path / n).is_file()]
    if missing:
        pytest.fail(f"{path} has no {', '.join(missing)}; run `make setup`")
    return path


@pytest.fixture(scope="session")
def sandbox_service() -> Iterator[str]:
    """URL of one sandbox service, for every test that needs sandboxes: with gVisor, or with what
    `JOURNEYMAN_TEST_DRIVER` names."""
    with asyncio.Runner() as runner:
        service = running_service(driver=os.environ.get("JOURNEYMAN_TEST_DRIVER", "gvisor"))
        url = runner.run(service.__aenter__())
        try:
            yield url
        finally:
            runner.run(service.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def small_tasks() -> list[Task]:
    """A dozen tasks of two real projects, of every split."""
    directory = home_dir() / "tasks" / "small"
    if not (directory / "set.json").is_file():
        pytest.fail(f"there is no task set in {directory}; run `make test`")
    return load_tasks(directory)
