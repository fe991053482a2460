"""Logs are lines to read on stderr and fields to search in a file."""

import json
import logging
from pathlib import Path

import pytest

from journeyman.observe import setup_logging


@pytest.fixture(autouse=True)
def _reset():
    yield
    logger = logging.getLogger("journeyman")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def test_fields_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "run.jsonl"
    setup_logging("warning", path)
    logger = logging.getLogger("journeyman.controller")
    logger.info("step applied", extra={"step": 3, "loss": 0.25, "_private": 1})
    try:
        raise ValueError("[red]no[/red]")
    except ValueError:
        logger.exception("failed")
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "journeyman.controller",
        "message": "step applied",
        "step": 3,
        "loss": 0.25,
    }
    assert second["level"] == "error"
    assert "ValueError: [red]no[/red]" in second["trace"]


def test_setting_up_twice_does_not_double_lines(tmp_path: Path) -> None:
    setup_logging("error", tmp_path / "first.jsonl")
    setup_logging("error", tmp_path / "second.jsonl")
    logging.getLogger("journeyman").info("once")
    assert (tmp_path / "first.jsonl").read_text() == ""
    assert len((tmp_path / "second.jsonl").read_text().splitlines()) == 1
