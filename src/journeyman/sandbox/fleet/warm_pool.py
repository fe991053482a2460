"""Sandboxes that were started before anybody asked for them, by template.

A warm sandbox is a fork that nobody has touched. It is given away once and never comes back.
"""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field

from journeyman.sandbox.fleet.demand import Demand
from journeyman.types.value import Value


class WarmSettings(Value):
    """How many sandboxes wait for somebody to ask for them."""

    refill_s: float = Field(default=2.0, gt=0)
    """How long it takes to replace one that was given away."""
    memory: float = Field(default=0.98, gt=0, lt=1)
    """Weight of the past in the estimate of demand, for each `refill_s`."""
    deviations: float = Field(default=2.0, ge=0)
    """Standard deviations above the mean demand that are kept ready."""
    most_per_template: int = Field(default=32, ge=0)
    most: int = Field(default=256, ge=0)
    """Of all templates together: each holds memory on its node."""


class Warm(NamedTuple):
    """A sandbox on the shelf."""

    sandbox: str
    node: str


class WarmPlan(Value):
    """What to do so that the shelf holds what will be asked for."""

    start: dict[str, int]
    """Template → how many to start."""
    close: tuple[str, ...]
    """Sandboxes that nobody will ask for."""


class WarmPools:
    """The shelf, and how full it should be. Not safe to share between threads."""

    def __init__(self, settings: WarmSettings) -> None:
        self._settings = settings
        self._demand: dict[str, Demand] = {}
        self._shelf: dict[str, list[Warm]] = {}

    def take(self, template: str, now: float) -> Warm | None:
        """Somebody asks for a sandbox of the template: the one that has waited longest, if any.
        Counts as demand either way."""
        settings = self._settings
        if template not in self._demand:
            self._demand[template] = Demand(settings.refill_s, settings.memory, now)
        self._demand[template].ask(now)
        shelf = self._shelf.get(template)
        return shelf.pop(0) if shelf else None

    def put(self, template: str, warm: Warm) -> None:
        """One more is ready."""
        self._shelf.setdefault(template, []).append(warm)

    def withdraw(self, node: str) -> list[Warm]:
        """All that wait on a node which drains or is lost; they are on the shelf no more."""
        gone = [warm for shelf in self._shelf.values() for warm in shelf if warm.node == node]
        for template, shelf in self._shelf.items():
            self._shelf[template] = [warm for warm in shelf if warm.node != node]
        return gone

    def ready(self, template: str) -> int:
        return len(self._shelf.get(template, ()))

    def targets(self, now: float) -> dict[str, int]:
        """How many of each template should be ready. Where all together would be too many, each
        gets its part, the rest going to the ones that lose most by rounding."""
        settings = self._settings
        wanted = {
            template: min(settings.most_per_template, demand.target(now, settings.deviations))
            for template, demand in self._demand.items()
        }
        self._demand = {name: each for name, each in self._demand.items() if not _is_over(each)}
        return _fit({name: number for name, number in wanted.items() if number}, settings.most)

    def plan(self, now: float, starting: Mapping[str, int]) -> WarmPlan:
        """`starting` counts those that are on their way to the shelf."""
        targets = self.targets(now)
        start, close = {}, []
        for template in sorted(targets.keys() | self._shelf.keys()):
            missing = targets.get(template, 0) - self.ready(template)
            if missing > starting.get(template, 0):
                start[template] = missing - starting.get(template, 0)
            if missing < 0:
                shelf = self._shelf[template]
                close += [warm.sandbox for warm in shelf[missing:]]
                del shelf[missing:]
        return WarmPlan(start=start, close=tuple(close))


def _is_over(demand: Demand) -> bool:
    return demand.count == 0 and demand.square < 1e-6


def _fit(wanted: dict[str, int], most: int) -> dict[str, int]:
    total = sum(wanted.values())
    if total <= most:
        return wanted
    parts = {name: number * most / total for name, number in wanted.items()}
    given = {name: int(part) for name, part in parts.items()}
    left = most - sum(given.values())
    for name in sorted(parts, key=lambda name: (given[name] - parts[name], name))[:left]:
        given[name] += 1
    return {name: number for name, number in given.items() if number}
