"""What a policy made of a simulated workload."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any


@dataclass(slots=True)
class Outcome:
    """Counts of one simulation. A sandbox that is placed again after a loss counts once more in
    `placements`."""

    nodes: int
    sandboxes: int
    placements: int = 0
    placing_s: float = 0.0
    """CPU time inside the scheduler for placements, their starts and their ends."""
    reports: int = 0
    reporting_s: float = 0.0
    """CPU time inside the scheduler for the reports of nodes."""
    failed: int = 0
    """No node had room."""
    lost: int = 0
    resumed: int = 0
    moved: int = 0
    copies: int = 0
    """Of templates and snapshots, from one node to another."""
    peak_live: int = 0
    start_peak: float = 0.0
    """Most sandboxes starting at once on one node, for each of its CPUs."""
    start_s: list[float] = field(default_factory=list)
    """From the placement of each sandbox to the end of its start, copies included."""
    hottest_over_mean: list[float] = field(default_factory=list)
    """One sample every few seconds of the second half, when the fleet is full."""
    busiest: float = 0.0
    """Highest mean pressure of the fleet."""

    def figures(self) -> dict[str, Any]:
        """One JSON object."""
        samples = self.hottest_over_mean
        return {
            "nodes": self.nodes,
            "sandboxes": self.sandboxes,
            "placements_per_s": _rate(self.placements, self.placing_s),
            "failed": self.failed,
            "hottest_over_mean": round(fmean(samples), 3) if samples else None,
            "hottest_over_mean_worst": round(max(samples), 3) if samples else None,
            "reports_per_s": _rate(self.reports, self.reporting_s),
            "start_s_mean": round(fmean(self.start_s), 3) if self.start_s else None,
            "start_peak_per_cpu": round(self.start_peak, 3),
            "peak_live": self.peak_live,
            "fleet_pressure_peak": round(self.busiest, 3),
            "copies": self.copies,
            "moved": self.moved,
            "resumed": self.resumed,
            "lost": self.lost,
        }


def _rate(number: int, seconds: float) -> float | None:
    return round(number / seconds, 1) if seconds > 0 else None


def ratios(outcome: Outcome, to: Outcome) -> dict[str, float | None]:
    """How many times higher another policy's figures are than those of `to`; lower is better."""
    ours, theirs = to.figures(), outcome.figures()
    names = ("hottest_over_mean", "start_peak_per_cpu", "start_s_mean", "copies")
    return {
        name: round(theirs[name] / ours[name], 2) if ours[name] and theirs[name] else None
        for name in names
    }
