"""How a node is chosen: by pressure, and two simple ways to compare that with."""

from random import Random
from typing import Literal, Protocol, get_args

from journeyman.sandbox.fleet.fleet_load import FleetLoad
from journeyman.sandbox.fleet.load import NodeLoad
from journeyman.sandbox.fleet.placement import PlacementRequest

_TRIES = 32
PolicyName = Literal["pressure", "random", "round-robin"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


class Chooser(Protocol):
    """Names a ready node on which the request fits, or None if there is none at all. `home` is
    where the state of a sandbox lies that was placed before."""

    def choose(
        self, request: PlacementRequest, now: float, home: NodeLoad | None
    ) -> NodeLoad | None: ...


class PressureChooser:
    """The least full of a few nodes drawn in proportion to their headroom, and the snapshot's own
    node where that is not much fuller.

    Drawing few and taking the best keeps the maximum low (M. Mitzenmacher, "The power of two
    choices in randomized load balancing", 2001); drawing in proportion to what is free carries
    that over to nodes of different sizes (U. Wieder, "Balanced allocations with heterogenous
    bins", 2007).
    """

    def __init__(self, fleet: FleetLoad, random: Random) -> None:
        self._fleet = fleet
        self._random = random

    def choose(
        self, request: PlacementRequest, now: float, home: NodeLoad | None
    ) -> NodeLoad | None:
        count = self._fleet.settings.choices
        drawn = (self._fleet.choose(request.driver, self._random) for _ in range(count))
        best, share = self._least_full([load for load in drawn if load], request, now)
        if best is None:
            # Only near the end of the capacity, or where a request asks for much: O(n).
            best, share = self._least_full(list(self._fleet.ready(request.driver)), request, now)
        if best is None:
            return None
        near, near_share = self._least_full(self._near(request, home, best), request, now)
        settings = self._fleet.settings
        if near is not None and near_share <= min(settings.hot, share + settings.copy_penalty):
            return near
        return best

    def _near(
        self, request: PlacementRequest, home: NodeLoad | None, best: NodeLoad
    ) -> list[NodeLoad]:
        """Nodes to which nothing needs to be copied; none where the best one is such a node."""
        fleet, snapshot = self._fleet, request.snapshot
        if home is not None and home.node.state != "lost":
            near = [home]
        elif fleet.has_snapshot(snapshot, best.node.id) or fleet.expects_snapshot(
            snapshot, best.node.id
        ):
            return []
        else:
            count = fleet.settings.choices
            near = fleet.draw_holders(snapshot, count, self._random)
            near += fleet.draw_expecting(snapshot, count, self._random)
        return [load for load in near if load.takes(request.driver)]

    def _least_full(
        self, loads: list[NodeLoad], request: PlacementRequest, now: float
    ) -> tuple[NodeLoad | None, float]:
        best, least, use = None, float("inf"), self._fleet.use
        for load in loads:
            share = load.share(now, use, request)
            if share < least and load.fits(request):
                best, least = load, share
        return best, least


class RandomChooser:
    """Any node on which the request fits, each as likely as the others."""

    def __init__(self, fleet: FleetLoad, random: Random) -> None:
        self._fleet = fleet
        self._random = random

    def choose(
        self, request: PlacementRequest, now: float, home: NodeLoad | None
    ) -> NodeLoad | None:
        members = self._fleet.members
        for _ in range(_TRIES if members else 0):
            load = members[int(self._random.random() * len(members))]
            if load.takes(request.driver) and load.fits(request):
                return load
        fitting = [load for load in self._fleet.ready(request.driver) if load.fits(request)]
        return self._random.choice(fitting) if fitting else None


class RoundRobinChooser:
    """The next node, in the order in which they joined, on which the request fits."""

    def __init__(self, fleet: FleetLoad) -> None:
        self._fleet = fleet
        self._turn = 0

    def choose(
        self, request: PlacementRequest, now: float, home: NodeLoad | None
    ) -> NodeLoad | None:
        members = self._fleet.members
        for step in range(len(members)):
            load = members[(self._turn + step) % len(members)]
            if load.takes(request.driver) and load.fits(request):
                self._turn = (self._turn + step + 1) % len(members)
                return load
        return None


def make_chooser(policy: PolicyName, fleet: FleetLoad, random: Random) -> Chooser:
    if policy == "pressure":
        return PressureChooser(fleet, random)
    if policy == "random":
        return RandomChooser(fleet, random)
    return RoundRobinChooser(fleet)
