"""The simulation: deterministic, complete, and better than chance."""

from collections import Counter
from functools import cache

import pytest

from journeyman.sandbox.fleet.chooser import PolicyName
from journeyman.sandbox.fleet.settings import SchedulerSettings
from journeyman.sandbox.fleet.simulation.outcome import Outcome, ratios
from journeyman.sandbox.fleet.simulation.simulate import Simulation
from journeyman.sandbox.fleet.simulation.workload import STEP, visitors


@cache
def outcome(policy: PolicyName, nodes: int = 100, sandboxes: int = 8000, seed: int = 3) -> Outcome:
    simulation = Simulation(nodes, sandboxes, policy, seed)
    assert list(simulation.run())[-1] == sandboxes
    return simulation.outcome


def test_the_same_seed_gives_the_same_outcome() -> None:
    def counts(seed: int) -> dict[str, object]:
        figures = outcome.__wrapped__("pressure", 30, 1500, seed).figures()
        return {name: value for name, value in figures.items() if not name.endswith("per_s")}

    assert counts(1) == counts(1)
    assert counts(1) != counts(2)


def test_every_sandbox_arrives_once_and_in_order() -> None:
    arrived = list(visitors(2500, 600.0, 0))
    assert len({visitor.request.sandbox for visitor in arrived}) == 2500
    times = [visitor.arrives_at for visitor in arrived]
    assert times == sorted(times)


def test_a_training_step_starts_its_groups_at_once() -> None:
    moments = Counter(
        visitor.arrives_at for visitor in visitors(5000, 600.0, 0) if visitor.request.spread
    )
    assert set(list(moments.values())[:-1]) == {STEP}


def test_losses_and_drains_happen_and_are_accounted_for() -> None:
    result = outcome("pressure", 400, 8000)
    assert result.lost > 0
    assert result.resumed > 0
    assert result.moved > 0
    assert result.placements == 8000 + result.lost + result.resumed + result.moved


@pytest.mark.parametrize("other", ["random", "round-robin"])
def test_pressure_keeps_the_hottest_node_cooler(other: PolicyName) -> None:
    compared = ratios(outcome(other), to=outcome("pressure"))
    assert compared["hottest_over_mean"] is not None
    assert compared["hottest_over_mean"] > 1.2


def test_counting_starts_in_flight_keeps_them_from_piling_up() -> None:
    """Without it, a burst follows the snapshot to whichever node looks idle."""
    blind = Simulation(100, 8000, "pressure", 3, SchedulerSettings(start_cpus=0))
    assert list(blind.run())[-1] == 8000
    assert blind.outcome.start_peak > 2 * outcome("pressure").start_peak


def test_nothing_fails_while_there_is_room() -> None:
    assert outcome("pressure").failed == 0


def test_a_fleet_that_is_too_small_says_so() -> None:
    assert outcome("pressure", 4, 3000).failed > 0
