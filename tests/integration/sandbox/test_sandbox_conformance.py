"""Every driver against the one conformance suite, on the real engines."""

import asyncio
from collections.abc import Iterator

import pytest

from journeyman.sandbox.conformance.case import CASES, Bench, Case
from journeyman.sandbox.conformance.promises import ABILITIES, NOT_PROMISED, not_promised
from journeyman.sandbox.conformance.suite import bench_of, try_case
from journeyman.sandbox.node.probe import DRIVERS


@pytest.fixture(scope="module")
def on(request: pytest.FixtureRequest) -> Iterator[tuple[str, Bench, asyncio.Runner]]:
    """A driver, its service, and the loop that both live on."""
    with asyncio.Runner() as runner:
        context = bench_of(request.param)
        bench = runner.run(context.__aenter__())
        try:
            yield request.param, bench, runner
        finally:
            runner.run(context.__aexit__(None, None, None))


PROMISED = [
    pytest.param(driver, case, id=f"{driver}-{case.name}")
    for driver in sorted(DRIVERS)
    for case in CASES.values()
    if not not_promised(driver, case.needs)
]


@pytest.mark.parametrize(("on", "case"), PROMISED, indirect=["on"])
def test_it_keeps_its_promise(on: tuple[str, Bench, asyncio.Runner], case: Case) -> None:
    driver, bench, runner = on
    result = runner.run(try_case(case, bench, driver))
    assert (result.outcome, result.seen) == ("passed", "")


@pytest.mark.parametrize("on", ["gvisor"], indirect=True)
def test_a_driver_that_breaks_a_promise_fails(on: tuple[str, Bench, asyncio.Runner]) -> None:
    driver, bench, runner = on

    async def lies(_: Bench) -> None:
        from journeyman.sandbox.conformance.case import equal

        equal("what was seen", "what is right")

    broken = Case("lies", "never kept", frozenset(), lies)
    result = runner.run(try_case(broken, bench, driver))
    assert (result.outcome, "'what was seen' instead" in result.seen) == ("failed", True)


def test_only_known_abilities_are_not_promised_and_only_by_known_drivers():
    assert set(NOT_PROMISED) == set(DRIVERS)
    for lacking in NOT_PROMISED.values():
        assert set(lacking) <= ABILITIES
    for case in CASES.values():
        assert case.needs <= ABILITIES, case.name
