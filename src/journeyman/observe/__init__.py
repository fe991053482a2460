"""Logs, progress and timings."""

from journeyman.observe.logs import setup_logging
from journeyman.observe.progress import Progress, Stage
from journeyman.observe.timings import StageTimer, Timings

__all__ = ["Progress", "Stage", "StageTimer", "Timings", "setup_logging"]
