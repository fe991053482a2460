"""Running the cases against one driver."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from journeyman.sandbox.client.client import SandboxClient
from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.conformance import commands, confines, files, forks, lives
from journeyman.sandbox.conformance.case import CASES, Bench, Case, Violation
from journeyman.sandbox.conformance.promises import not_promised
from journeyman.sandbox.service.launch import running_service
from journeyman.types.failure import JourneymanError, UserError
from journeyman.types.value import Value

MODULES = (commands, files, lives, forks, confines)
"""Imported for their cases."""
_CASE_S = 300.0

Outcome = Literal["passed", "failed", "not promised"]


class CaseResult(Value):
    name: str
    promise: str
    outcome: Outcome
    seen: str = ""
    """What was wrong, or why it is not promised."""
    seconds: float = 0.0


class Report(Value):
    driver: str
    isolation: str
    results: tuple[CaseResult, ...]

    @property
    def failed(self) -> int:
        return sum(result.outcome == "failed" for result in self.results)


@asynccontextmanager
async def bench_of(driver: str) -> AsyncIterator[Bench]:
    """A service of its own with this driver. Raises UserError when it cannot run here."""
    state = Path(tempfile.mkdtemp(prefix="journeyman-conformance-"))
    try:
        async with running_service(driver, state) as url, SandboxClient(url) as client:
            yield Bench(client, await client.build_template(TemplateSpec()), state)
    finally:
        await asyncio.to_thread(shutil.rmtree, state, ignore_errors=True)


def select(pattern: str) -> list[Case]:
    """The cases whose name holds `pattern`. Raises UserError when there is none."""
    chosen = [case for case in CASES.values() if pattern in case.name]
    if not chosen:
        raise UserError(
            f"no conformance case's name holds {pattern!r}", f"There are: {', '.join(CASES)}."
        )
    return chosen


async def try_case(case: Case, bench: Bench, driver: str) -> CaseResult:
    """Never raises for what the driver does wrong."""
    if reason := not_promised(driver, case.needs):
        return CaseResult(name=case.name, promise=case.promise, outcome="not promised", seen=reason)
    began = time.monotonic()
    outcome: Outcome = "passed"
    seen = ""
    try:
        async with asyncio.timeout(_CASE_S), bench.cleanly():
            await case.trial(bench)
    except (Violation, JourneymanError, OSError) as error:
        outcome, seen = "failed", f"{type(error).__name__}: {error}"
    return CaseResult(
        name=case.name,
        promise=case.promise,
        outcome=outcome,
        seen=seen,
        seconds=round(time.monotonic() - began, 3),
    )


async def run_suite(
    driver: str, cases: Iterable[Case], tell: Callable[[CaseResult], None]
) -> Report:
    """Try the cases one after the other; `tell` hears of each as it ends."""
    async with bench_of(driver) as bench:
        health = await bench.client.health()
        results = []
        for case in cases:
            results.append(await try_case(case, bench, health.driver))
            tell(results[-1])
    return Report(driver=health.driver, isolation=health.isolation, results=tuple(results))
