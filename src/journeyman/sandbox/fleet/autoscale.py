"""How many hosts a fleet needs. Decides, and does nothing itself."""

from collections.abc import Collection, Sequence
from math import ceil

from pydantic import Field, model_validator

from journeyman.sandbox.fleet.fleet_load import FleetLoad
from journeyman.sandbox.fleet.load import NodeLoad, millicpus
from journeyman.sandbox.fleet.placement import PlacementRequest
from journeyman.sandbox.fleet.provider import Host
from journeyman.types.value import Value


class ScaleSettings(Value):
    """Bounds and patience. Shares are of what may be promised."""

    least: int = Field(default=1, ge=0)
    most: int = Field(default=1, ge=0)
    high: float = Field(default=0.75, gt=0, le=1)
    """Fuller than this, the fleet grows."""
    low: float = Field(default=0.4, ge=0, lt=1)
    """A node is given up when the others would still be emptier than this …"""
    calm_s: float = Field(default=600.0, ge=0)
    """… and have been for so long."""
    boot_s: float = Field(default=900.0, gt=0)
    """A host from which no node has registered after so long is broken. Metal takes minutes."""

    @model_validator(mode="after")
    def _in_order(self) -> "ScaleSettings":
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) is more than most ({self.most})")
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self


class ScaleDecision(Value):
    """What to do now. `drain` names a node to empty; `terminate` names hosts that carry nothing."""

    start: int = 0
    drain: str = ""
    terminate: tuple[str, ...] = ()


class Autoscaler:
    """Grows at once, shrinks slowly, by one node at a time, and never past its bounds."""

    def __init__(self, settings: ScaleSettings) -> None:
        self._settings = settings
        self._calm_since: float | None = None

    def decide(
        self,
        fleet: FleetLoad,
        hosts: Sequence[Host],
        refused: Collection[PlacementRequest],
        now: float,
    ) -> ScaleDecision:
        """`refused` are the requests that found no room since the last decision and still wait.

        Only hosts of the provider are ended, and only once their node has nothing left on it; a
        node that is lost and whose sandboxes were settled elsewhere is one of those: ending its
        host also makes sure that it is gone.
        """
        terminate = tuple(host.id for host in hosts if self._is_useless(host, fleet))
        ready = [load for load in fleet.nodes.values() if load.node.state == "ready"]
        coming = [
            host
            for host in hosts
            if host.id not in fleet.nodes and host.id not in terminate and host.state != "stopping"
        ]
        missing = self._wanted(ready, refused) - len(ready) - len(coming)
        if missing > 0:
            self._calm_since = None
            return ScaleDecision(start=missing, terminate=terminate)
        drain = self._to_drain(fleet, ready, hosts, now) if not (coming or refused) else ""
        return ScaleDecision(drain=drain, terminate=terminate)

    def _is_useless(self, host: Host, fleet: FleetLoad) -> bool:
        if host.state == "stopping":
            return False
        load = fleet.nodes.get(host.id)
        if load is None:
            return host.age_s > self._settings.boot_s
        return load.node.state != "ready" and not load.sandboxes

    def _wanted(self, ready: list[NodeLoad], refused: Collection[PlacementRequest]) -> int:
        """Nodes, each like the average of those there are."""
        settings = self._settings
        wanted = settings.least
        if ready:
            full = sum(map(_fullness, ready)) / settings.high
            wanted = max(wanted, ceil(full - 1e-9), len(ready) + _nodes_for(refused, ready))
        elif refused:
            wanted = max(wanted, 1)
        return min(wanted, settings.most)

    def _to_drain(
        self, fleet: FleetLoad, ready: list[NodeLoad], hosts: Sequence[Host], now: float
    ) -> str:
        """The emptiest node that is the provider's, once the fleet has been calm for long."""
        draining = any(load.node.state == "draining" for load in fleet.nodes.values())
        fewer = len(ready) - 1
        calm = (
            not draining
            and fewer >= max(1, self._settings.least)
            and sum(map(_fullness, ready)) < fewer * self._settings.low
        )
        if not calm:
            self._calm_since = None
            return ""
        if self._calm_since is None:
            self._calm_since = now
        if now - self._calm_since < self._settings.calm_s:
            return ""
        ours = {host.id for host in hosts}
        candidates = [load for load in ready if load.node.id in ours]
        if not candidates:
            return ""
        self._calm_since = None
        return min(candidates, key=lambda load: (_fullness(load), load.node.id)).node.id


def _fullness(load: NodeLoad) -> float:
    has = load.node.capacity
    return max(
        load.millicpus / load.most_millicpus,
        load.promised_memory_bytes / has.memory_bytes,
        load.promised_disk_bytes / has.disk_bytes,
    )


def _nodes_for(refused: Collection[PlacementRequest], ready: list[NodeLoad]) -> int:
    """Average nodes that would hold all the refused, by their scarcest resource; at least one
    for any. What is too big for every node is none's reason to start more."""
    biggest = [load for load in ready if any(_could_hold(load, each) for each in refused)]
    refused = [each for each in refused if any(_could_hold(load, each) for load in biggest)]
    if not refused:
        return 0
    count = len(ready)
    shares = (
        sum(map(millicpus, refused)) / (sum(load.most_millicpus for load in ready) / count),
        sum(each.memory_bytes for each in refused)
        / (sum(load.node.capacity.memory_bytes for load in ready) / count),
        sum(each.disk_bytes for each in refused)
        / (sum(load.node.capacity.disk_bytes for load in ready) / count),
    )
    return max(1, ceil(max(shares) - 1e-9))


def _could_hold(load: NodeLoad, request: PlacementRequest) -> bool:
    """If it were empty."""
    has = load.node.capacity
    return (
        request.driver in load.node.drivers
        and millicpus(request) <= load.most_millicpus
        and request.memory_bytes <= has.memory_bytes
        and request.disk_bytes <= has.disk_bytes
    )
