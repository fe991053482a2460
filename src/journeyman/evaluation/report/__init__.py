"""The report of a run: `report.html` for people, `report.json` for programs."""

from journeyman.evaluation.report.data import ReportData, gather
from journeyman.evaluation.report.write import render, write_report

__all__ = ["ReportData", "gather", "render", "write_report"]
