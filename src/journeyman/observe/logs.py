"""Structured logs: readable lines on stderr, JSON lines in a file."""

import json
import logging
import time
from pathlib import Path
from typing import Any

from rich.logging import RichHandler

from journeyman.observe.console import console

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, whatever `extra` held, the trace."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= _fields(record)
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def setup_logging(level: str = "info", file: Path | None = None) -> None:
    """Send the log of all `journeyman.*` to stderr from `level` up, and all of it to `file`.

    Calling it again replaces the former set-up. Log facts as fields, not inside the text:
    `logger.info("step applied", extra={"step": 3, "loss": 0.2})`.
    """
    logger = logging.getLogger("journeyman")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = False
    logger.setLevel(logging.DEBUG if file else level.upper())
    shown = RichHandler(console=console(), show_path=False, markup=False, rich_tracebacks=False)
    shown.setLevel(level.upper())
    shown.setFormatter(_WithFields("%(message)s"))
    logger.addHandler(shown)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = logging.FileHandler(file, encoding="utf-8")
        kept.setFormatter(JsonLines())
        logger.addHandler(kept)


class _WithFields(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text + "".join(f" {key}={value}" for key, value in _fields(record).items())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What `extra` held. Libraries (Ray among them) put private attributes on every record."""
    return {
        key: value
        for key, value in vars(record).items()
        if key not in _STANDARD and not key.startswith("_")
    }


def _utc(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created % 1 * 1000):03}Z"
