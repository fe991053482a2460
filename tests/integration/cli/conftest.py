"""Harbor tasks small enough to write down."""

from collections.abc import Callable
from pathlib import Path

import pytest

WriteTask = Callable[[Path, str, str], Path]


@pytest.fixture
def write_task() -> WriteTask:
    """Write a task whose tests/test.sh is `test`."""

    def write(parent: Path, name: str, test: str) -> Path:
        task = parent / name
        for folder in ("environment", "tests"):
            (task / folder).mkdir(parents=True)
        (task / "task.toml").write_text("[verifier]\ntimeout_sec = 20\n")
        (task / "instruction.md").write_text("Create the file /app/done with the word yes.\n")
        (task / "environment" / "Dockerfile").write_text(
            "FROM python:3.11-slim\nWORKDIR /app\nRUN echo hello > /app/readme\n"
        )
        (task / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}\n")
        (task / "tests" / "test.sh").chmod(0o755)
        return task

    return write
