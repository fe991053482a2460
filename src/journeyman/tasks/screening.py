"""A first look at a fault: do the tests notice it, without hanging or losing the whole module?"""

import math
from typing import Any

from journeyman.tasks.candidates import Candidate
from journeyman.types import Value

START_CPU_S = 2
START_S = 20.0


class Screened(Value):
    """`rejected` is empty for a fault worth a task."""

    rejected: str = ""
    test: str = ""
    """The failing test that the instruction shows."""
    explanation: str = ""
    failing: tuple[str, ...] = ()


def request(candidate: Candidate, seconds: dict[str, float]) -> dict[str, Any]:
    """What the workshop is to run."""
    usual = sum(seconds[test] for test in candidate.tests)
    return {
        "tests": candidate.tests,
        "cpu_s": START_CPU_S + math.ceil(5 * usual),
        "timeout_s": START_S + 20 * usual,
        "overlay": {candidate.path: candidate.mutation.source.decode("utf-8")},
    }


def screen(candidate: Candidate, result: dict[str, Any], patched: tuple[str, ...]) -> Screened:
    """The judgement on one run."""
    report = result["report"]
    if result["timed_out"]:
        return Screened(rejected="hangs")
    if report is None:
        return Screened(rejected="ends the test process")
    if set(report["patched"]) - set(patched):
        return Screened(rejected="patches pytest")
    outcomes = report["outcomes"]
    if set(outcomes) != set(candidate.tests):
        return Screened(rejected="cannot be imported")
    failing = tuple(test for test in candidate.tests if outcomes[test] == "failed")
    if not failing:
        return Screened(rejected="not noticed")
    test = min(failing, key=lambda name: _awkwardness(name, report["errors"].get(name, "")))
    explanation = report["errors"].get(test, "")
    if not explanation:
        return Screened(rejected="fails without a word")
    return Screened(test=test, explanation=explanation, failing=failing)


def _awkwardness(test: str, explanation: str) -> tuple[int, str]:
    """Short names with a short explanation are read best; ties by name."""
    return len(test) + min(len(explanation), 300) + (10_000 if not explanation else 0), test
