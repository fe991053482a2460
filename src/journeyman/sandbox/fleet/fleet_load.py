"""What all nodes carry, and where to find the ones worth looking at."""

from collections.abc import Iterator
from random import Random

from journeyman.sandbox.fleet.load import NodeLoad, Reservation, millicpus, spread_key
from journeyman.sandbox.fleet.node import Node, NodeState, Pressure
from journeyman.sandbox.fleet.placement import PlacementRequest
from journeyman.sandbox.fleet.pool import WeightedPool
from journeyman.sandbox.fleet.settings import SchedulerSettings
from journeyman.types.failure import SandboxError, UserError

_MEMORY = 0.995
"""What a report leaves of the earlier ones in the estimate of use: about the last 200 count."""


class Holders:
    """The nodes that have one snapshot; any of them can be drawn in O(1)."""

    def __init__(self) -> None:
        self._nodes: list[str] = []
        self._at: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: str) -> bool:
        return node in self._at

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def add(self, node: str) -> None:
        if node not in self._at:
            self._at[node] = len(self._nodes)
            self._nodes.append(node)

    def discard(self, node: str) -> None:
        at = self._at.pop(node, None)
        if at is None:
            return
        last = self._nodes.pop()
        if last != node:
            self._nodes[at] = last
            self._at[last] = at

    def draw(self, count: int, random: Random) -> list[str]:
        """All of them if they are at most `count`, else `count` at random, perhaps some twice."""
        num = len(self._nodes)
        if num <= count:
            return list(self._nodes)
        return [self._nodes[int(random.random() * num)] for _ in range(count)]


class FleetLoad:
    """Every change goes through here, so that the indices follow. A call costs O(log n); only
    those that add, remove or lose a node look at all its sandboxes."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.nodes: dict[str, NodeLoad] = {}
        self.pools: dict[str, WeightedPool] = {}
        self.members: list[NodeLoad] = []
        """In the order in which they joined; the place of one that left goes to the next."""
        self._member: dict[str, int] = {}
        self._free_members: list[int] = []
        self._present: dict[str, Holders] = {}
        self._coming: dict[str, Holders] = {}
        self._reservations: dict[str, Reservation] = {}
        self._used_cpus = settings.first_use
        self._used_of_cpus = 1.0

    @property
    def use(self) -> float:
        """Share of its promised CPUs that a sandbox of this fleet uses, as measured."""
        return self._used_cpus / self._used_of_cpus

    # ---- nodes

    def node(self, node_id: str) -> NodeLoad:
        """Raises SandboxError for one that never registered."""
        try:
            return self.nodes[node_id]
        except KeyError:
            raise SandboxError(
                f"the fleet has no node {node_id!r}", "Let it register first."
            ) from None

    def put_node(self, node: Node, now: float) -> None:
        """Add a node, or take in what it says of itself anew; what it carries stays."""
        known = self.nodes.get(node.id)
        if known is None:
            load = NodeLoad(node, self.settings)
            self.nodes[node.id] = load
            if self._free_members:
                self._member[node.id] = self._free_members.pop()
                self.members[self._member[node.id]] = load
            else:
                self._member[node.id] = len(self.members)
                self.members.append(load)
        else:
            self._leave_pools(known)
            for snapshot in known.node.snapshots - node.snapshots:
                self._forget(self._present, snapshot, node.id)
            known.node = node
        self._index_snapshots(node, now)
        self._weigh(self.nodes[node.id], now)

    def set_state(self, node_id: str, state: NodeState, now: float) -> None:
        """Of the states only `ready` lets sandboxes be placed. What a lost node has on its disk
        is out of reach."""
        load = self.node(node_id)
        load.node = load.node.model_copy(update={"state": state})
        self._index_snapshots(load.node, now)
        self._weigh(load, now)

    def remove_node(self, node_id: str) -> None:
        """Raises UserError while sandboxes are placed there: they would be forgotten."""
        load = self.node(node_id)
        if load.sandboxes:
            raise UserError(
                f"node {node_id} still has {len(load.sandboxes)} sandboxes",
                "Drain it first, or report it lost and release them.",
            )
        self._leave_pools(load)
        self._hide_snapshots(node_id)
        load.node = load.node.model_copy(update={"state": "lost"})
        self._free_members.append(self._member.pop(node_id))
        del self.nodes[node_id]

    def report(self, pressure: Pressure, now: float) -> bool:
        """Take a report in. False where it is older than the last, or of an unknown node."""
        load = self.nodes.get(pressure.node)
        if load is None or not load.take(pressure):
            return False
        promised = (load.millicpus - load.unseen_millicpus) / 1000
        if promised > 0:
            used = min(pressure.cpus_used, promised)
            self._used_cpus = self._used_cpus * _MEMORY + used
            self._used_of_cpus = self._used_of_cpus * _MEMORY + promised
        self._weigh(load, now)
        return True

    def ready(self, driver: str) -> Iterator[NodeLoad]:
        """Every node that may get a sandbox of this driver. O(n)."""
        return (load for load in self.nodes.values() if load.takes(driver))

    def choose(self, driver: str, random: Random) -> NodeLoad | None:
        """A ready node, in proportion to its headroom; None where no headroom is left."""
        pool = self.pools.get(driver)
        if pool is None or not pool.total:
            return None
        return self.members[pool.choose(random)]

    # ---- snapshots

    def has_snapshot(self, snapshot: str, node_id: str) -> bool:
        return node_id in self._holders(self._present, snapshot)

    def expects_snapshot(self, snapshot: str, node_id: str) -> bool:
        """It is being copied to or built on the node already."""
        return node_id in self._holders(self._coming, snapshot)

    def is_held(self, snapshot: str) -> bool:
        """Whether a node that is not lost has it."""
        return len(self._holders(self._present, snapshot)) > 0

    def holders(self, snapshot: str) -> list[NodeLoad]:
        """Every node that has the snapshot and is not lost."""
        return [self.nodes[name] for name in self._holders(self._present, snapshot)]

    def draw_holders(self, snapshot: str, count: int, random: Random) -> list[NodeLoad]:
        """Nodes that have the snapshot and are not lost."""
        names = self._holders(self._present, snapshot).draw(count, random)
        return [self.nodes[name] for name in names]

    def draw_expecting(self, snapshot: str, count: int, random: Random) -> list[NodeLoad]:
        """Nodes on which the snapshot will soon lie."""
        names = self._holders(self._coming, snapshot).draw(count, random)
        return [self.nodes[name] for name in names]

    def expect_snapshot(self, snapshot: str, node_id: str) -> None:
        self._coming.setdefault(snapshot, Holders()).add(node_id)

    def snapshot_arrived(self, snapshot: str, node_id: str, now: float) -> None:
        load = self.node(node_id)
        held = load.node.snapshots | {snapshot}
        load.node = load.node.model_copy(update={"snapshots": held})
        self._arrived(snapshot, node_id)
        load.arrived(snapshot, now)
        self._weigh(load, now)

    def snapshot_failed(self, snapshot: str, node_id: str) -> None:
        """It did not arrive, or was removed. What waited for it has to be placed anew."""
        self._forget(self._coming, snapshot, node_id)
        self._forget(self._present, snapshot, node_id)
        if load := self.nodes.get(node_id):
            held = load.node.snapshots - {snapshot}
            load.node = load.node.model_copy(update={"snapshots": held})

    # ---- sandboxes

    def reservation(self, sandbox: str) -> Reservation | None:
        return self._reservations.get(sandbox)

    def reserve(
        self, request: PlacementRequest, load: NodeLoad, now: float, waits_for: str = ""
    ) -> Reservation:
        """Promise the node's resources to the sandbox, whether they are there or not. What it was
        promised before ends. `waits_for` is the snapshot that has to arrive before it starts."""
        self.release(request.sandbox, now)
        reservation = Reservation(
            sandbox=request.sandbox,
            load=load,
            millicpus=millicpus(request),
            memory_bytes=request.memory_bytes,
            disk_bytes=request.disk_bytes,
            spread=spread_key(request.tenant, request.spread),
            placed_at=now,
            waits_for=waits_for,
        )
        self._reservations[request.sandbox] = reservation
        load.carry(reservation)
        self._weigh(load, now)
        return reservation

    def started(self, sandbox: str, now: float) -> None:
        """Its start is over; an unknown sandbox is one that ended in the meantime. How likely the
        node is to be drawn follows at its next report: it is not worth the time here."""
        if reservation := self._reservations.get(sandbox):
            reservation.load.has_started(reservation, now)

    def rest(self, sandbox: str, now: float) -> None:
        """It was hibernated. Idempotent."""
        reservation = self._reservations.get(sandbox)
        if reservation and not reservation.resting:
            reservation.load.rest(reservation, now)
            self._weigh(reservation.load, now)

    def release(self, sandbox: str, now: float) -> None:
        """It ended. Idempotent."""
        if reservation := self._reservations.pop(sandbox, None):
            reservation.load.drop(reservation, now)
            self._weigh(reservation.load, now)

    # ---- indices

    def _weigh(self, load: NodeLoad, now: float) -> None:
        member = self._member[load.node.id]
        weight = load.headroom(now, self.use) if load.node.state == "ready" else 0
        for driver in load.node.drivers:
            pool = self.pools.get(driver)
            if pool is None:
                pool = self.pools[driver] = WeightedPool()
            pool.set(member, weight)

    def _leave_pools(self, load: NodeLoad) -> None:
        for driver in load.node.drivers:
            self.pools[driver].set(self._member[load.node.id], 0)

    def _index_snapshots(self, node: Node, now: float) -> None:
        if node.state == "lost":
            self._hide_snapshots(node.id)
            return
        load = self.nodes[node.id]
        for snapshot in node.snapshots:
            self._arrived(snapshot, node.id)
            load.arrived(snapshot, now)

    def _hide_snapshots(self, node_id: str) -> None:
        for snapshot in self.nodes[node_id].node.snapshots:
            self._forget(self._present, snapshot, node_id)
        for snapshot in [name for name, nodes in self._coming.items() if node_id in nodes]:
            self._forget(self._coming, snapshot, node_id)

    def _arrived(self, snapshot: str, node_id: str) -> None:
        self._present.setdefault(snapshot, Holders()).add(node_id)
        self._forget(self._coming, snapshot, node_id)

    @staticmethod
    def _forget(index: dict[str, Holders], snapshot: str, node_id: str) -> None:
        if holders := index.get(snapshot):
            holders.discard(node_id)
            if not len(holders):
                del index[snapshot]

    @staticmethod
    def _holders(index: dict[str, Holders], snapshot: str) -> Holders:
        return index.get(snapshot) or _NOBODY


_NOBODY = Holders()
