"""Which tests of a project call which functions, how long they take, and which can be trusted."""

from collections.abc import Sequence

from journeyman.tasks.projects import Project
from journeyman.tasks.workshop import Workshop
from journeyman.types import UserError, Value

_TIMEOUT_S = 600.0
_CPU_S = 120
_COVERING = 24
STEPS_S = (0.05, 0.2, 0.5)
"""Tests are as long as the next larger of these; longer ones are not used."""


class Survey(Value):
    """Of one project. A function is named "path:first line of its code (decorators included)"."""

    tests: dict[str, float]
    """Trusted tests: passed in two runs, not slow. Seconds each takes, coarsely."""
    covering: dict[str, tuple[str, ...]]
    """Function → trusted tests that call it, the most specific and quickest first (up to 24)."""
    patched: tuple[str, ...]
    """What the project's honest tests replace in pytest or Python themselves."""
    flaky: tuple[str, ...]
    slow: tuple[str, ...]


async def survey(project: Project, shop: Workshop) -> Survey:
    """Run the whole suite twice, once noting calls. Raises UserError if it cannot be run."""
    upstream = await shop.modules_elsewhere(project.modules)
    if upstream:
        raise UserError(
            f"{project.name} is also at {upstream[0]} in the sandbox: its tasks would give "
            "their answers away",
            "Leave the project out.",
        )
    request = {
        "tests": [],
        "files": project.tests,
        "skip": project.skip,
        "cpu_s": _CPU_S,
        "timeout_s": _TIMEOUT_S,
    }
    traced, plain = await shop.run([{**request, "trace": True}, request])
    for run in (traced, plain):
        if run["report"] is None:
            how = "ran out of time" if run["timed_out"] else f"ended with {run['exit']}"
            raise UserError(
                f"the tests of {project.name} {how}: {run['output'][-1000:]}",
                "Correct `tests` and `skip` of the project in projects.toml.",
            )
    return evaluate(traced["report"], plain["report"])


def evaluate(traced: dict, plain: dict) -> Survey:  # type: ignore[type-arg]
    """From the reports of the two runs (see `guest/harness.py`)."""
    both = set(traced["outcomes"]) & set(plain["outcomes"])
    passed = {
        test for test in both if traced["outcomes"][test] == plain["outcomes"][test] == "passed"
    }
    flaky = [test for test in both if traced["outcomes"][test] != plain["outcomes"][test]]
    seconds = {test: _coarse(float(plain["durations"][test])) for test in sorted(passed)}
    tests = {test: value for test, value in seconds.items() if value is not None}
    breadth = {test: len(traced["calls"].get(test, ())) for test in tests}
    order = sorted(tests, key=lambda test: (breadth[test], tests[test], test))
    covering: dict[str, list[str]] = {}
    for test in order:
        for number in traced["calls"].get(test, ()):
            path, line = traced["functions"][number]
            found = covering.setdefault(f"{path}:{line}", [])
            if len(found) < _COVERING:
                found.append(test)
    return Survey(
        tests=tests,
        covering={name: tuple(items) for name, items in sorted(covering.items())},
        patched=tuple(sorted({*traced["patched"], *plain["patched"]})),
        flaky=tuple(sorted(flaky)),
        slow=tuple(sorted(passed - set(tests))),
    )


def _coarse(seconds: float) -> float | None:
    """The next larger step, so that a busy machine chooses the same tests; None if slow."""
    return next((step for step in STEPS_S if seconds <= step), None)


def choose_tests(
    covering: Sequence[str], seconds: dict[str, float], most: int, budget_s: float
) -> list[str]:
    """Up to `most` of `covering` that take at most `budget_s` together (always one)."""
    chosen: list[str] = []
    left = budget_s
    for test in covering:
        if len(chosen) >= most:
            break
        if not chosen or seconds[test] <= left:
            chosen.append(test)
            left -= seconds[test]
    return chosen
