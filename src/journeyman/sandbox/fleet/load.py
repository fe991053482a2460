"""What one node carries: what was promised to it, what it measured, and what cannot show yet."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, exp

from journeyman.sandbox.fleet.node import Node, Pressure
from journeyman.sandbox.fleet.placement import PlacementRequest, Spread
from journeyman.sandbox.fleet.settings import SchedulerSettings

SpreadKey = tuple[str, str]
"""Tenant and key: equal keys of two tenants have nothing to do with each other."""


def millicpus(request: PlacementRequest) -> int:
    """Thousandths, rounded up: sums of integers stay exact over a million placements."""
    return ceil(request.cpus * 1000)


def spread_key(tenant: str, spread: Spread | None) -> SpreadKey | None:
    return (tenant, spread.key) if spread else None


@dataclass(slots=True, eq=False)
class Reservation:
    """What one sandbox was promised. A resting (hibernated) one holds disk and nothing else."""

    sandbox: str
    load: "NodeLoad"
    millicpus: int
    memory_bytes: int
    disk_bytes: int
    spread: SpreadKey | None
    placed_at: float
    unseen: bool = True
    """Its node has measured nothing since it was placed."""
    starting: bool = True
    waits_for: str = ""
    """The snapshot that has to arrive before it can start."""
    begun_at: float = 0.0
    resting: bool = False
    ended: bool = False


_NOTHING = Pressure(node="", measured_at=-1e18, cpus_used=0, memory_used_bytes=0, disk_used_bytes=0)
"""In place of a first report: so old that it is not trusted at all."""


@dataclass(slots=True, eq=False)
class NodeLoad:
    """Changed by `FleetLoad` only. Times are seconds on the fleet's clock."""

    node: Node
    settings: SchedulerSettings
    millicpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    unseen: deque[Reservation] = field(default_factory=deque)
    unseen_millicpus: int = 0
    unseen_memory_bytes: int = 0
    unseen_disk_bytes: int = 0
    starts: float = 0.0
    starts_at: float = 0.0
    waiting: dict[str, list[Reservation]] = field(default_factory=dict)
    """Snapshot on its way here → what will start as soon as it arrives."""
    num_waiting: int = 0
    report: Pressure = _NOTHING
    together: Counter[SpreadKey] = field(default_factory=Counter)
    sandboxes: dict[str, Reservation] = field(default_factory=dict)

    # ---- what it carries

    def carry(self, reservation: Reservation) -> None:
        at = reservation.placed_at
        self.sandboxes[reservation.sandbox] = reservation
        self._promise(reservation, 1)
        self.disk_bytes += reservation.disk_bytes
        self.unseen.append(reservation)
        self.unseen_millicpus += reservation.millicpus
        self.unseen_memory_bytes += reservation.memory_bytes
        self.unseen_disk_bytes += reservation.disk_bytes
        if reservation.waits_for:
            self.waiting.setdefault(reservation.waits_for, []).append(reservation)
            self.num_waiting += 1
        else:
            self._begin_start(reservation, at)

    def arrived(self, snapshot: str, now: float) -> None:
        """What waited for the snapshot starts now, all at once."""
        for reservation in self.waiting.pop(snapshot, ()):
            if reservation.waits_for:
                self._stop_waiting(reservation)
                self._begin_start(reservation, now)

    def has_started(self, reservation: Reservation, now: float) -> None:
        """Its start costs nothing any more."""
        if not reservation.starting:
            return
        reservation.starting = False
        if reservation.waits_for:
            self._stop_waiting(reservation)
            return
        left = exp(min(0.0, reservation.begun_at - now) / self.settings.start_s)
        self.starts = max(0.0, self._decayed_starts(now) - left)
        self.starts_at = now

    def _begin_start(self, reservation: Reservation, now: float) -> None:
        reservation.begun_at = now
        self.starts = self._decayed_starts(now) + 1.0
        self.starts_at = now

    def _stop_waiting(self, reservation: Reservation) -> None:
        reservation.waits_for = ""
        self.num_waiting -= 1

    def rest(self, reservation: Reservation, now: float) -> None:
        """It is hibernated: from now on it holds disk only."""
        self.has_started(reservation, now)
        self._see(reservation)
        self._promise(reservation, -1)
        reservation.resting = True

    def drop(self, reservation: Reservation, now: float) -> None:
        if not reservation.resting:
            self.rest(reservation, now)
        reservation.ended = True
        self.disk_bytes -= reservation.disk_bytes
        del self.sandboxes[reservation.sandbox]

    def lift(self, resting: Reservation) -> None:
        """Leave its disk out of the account while a place is sought for it."""
        self.disk_bytes -= resting.disk_bytes

    def put_back(self, resting: Reservation) -> None:
        """Undo `lift`."""
        self.disk_bytes += resting.disk_bytes

    def take(self, report: Pressure) -> bool:
        """Take a report in; False for one that is older than the last."""
        if report.measured_at <= self.report.measured_at:
            return False
        self.report = report
        visible = report.measured_at - self.settings.settle_s
        while self.unseen and (self.unseen[0].ended or self.unseen[0].placed_at <= visible):
            self._see(self.unseen.popleft())
        return True

    def _see(self, reservation: Reservation) -> None:
        if not reservation.unseen:
            return
        reservation.unseen = False
        self.unseen_millicpus -= reservation.millicpus
        self.unseen_memory_bytes -= reservation.memory_bytes
        self.unseen_disk_bytes -= reservation.disk_bytes

    def _promise(self, reservation: Reservation, sign: int) -> None:
        self.millicpus += sign * reservation.millicpus
        self.memory_bytes += sign * reservation.memory_bytes
        if reservation.spread is not None:
            self.together[reservation.spread] += sign
            if not self.together[reservation.spread]:
                del self.together[reservation.spread]

    # ---- what fits

    def takes(self, driver: str) -> bool:
        return self.node.state == "ready" and driver in self.node.drivers

    def obstacles(self, request: PlacementRequest) -> Iterator[str]:
        """Which resources keep the request out. Promises never exceed the capacity, and neither
        does what was measured plus what cannot show yet plus this request."""
        has = self.node.capacity
        if self.millicpus + millicpus(request) > self.most_millicpus:
            yield "cpus"
        memory, disk = request.memory_bytes, request.disk_bytes
        if self.promised_memory_bytes + memory > has.memory_bytes:
            yield "memory"
        if self.promised_disk_bytes + disk > has.disk_bytes:
            yield "disk"
        spread = request.spread
        if spread and self.together[request.tenant, spread.key] >= spread.most_per_node:
            yield "spread"

    def fits(self, request: PlacementRequest) -> bool:
        return next(self.obstacles(request), None) is None

    @property
    def most_millicpus(self) -> int:
        return int(self.node.capacity.cpus * self.settings.cpu_overcommit * 1000)

    @property
    def promised_memory_bytes(self) -> int:
        """Or what was measured and cannot show yet, where that is more."""
        measured = self.report.memory_used_bytes + self.unseen_memory_bytes
        return max(self.memory_bytes, measured)

    @property
    def promised_disk_bytes(self) -> int:
        return max(self.disk_bytes, self.report.disk_used_bytes + self.unseen_disk_bytes)

    # ---- how hot it is

    def starts_in_flight(self, now: float) -> float:
        """Starts that still cost something, or soon will; of those nearly done, fractions."""
        return self.num_waiting + self._decayed_starts(now)

    def _decayed_starts(self, now: float) -> float:
        return self.starts * exp(min(0.0, self.starts_at - now) / self.settings.start_s)

    def share(self, now: float, use: float, request: PlacementRequest | None = None) -> float:
        """How full the node is, by its fullest resource, with `request` on it if one is given.

        `use` is the share of promised CPUs that sandboxes of the fleet use. A report counts less
        the older it is; what replaces it is what was promised, and a penalty, for a node that
        has fallen silent may be one in trouble.
        """
        settings, report, has = self.settings, self.report, self.node.capacity
        age = max(0.0, now - report.measured_at)
        trust = exp(-age / settings.trust_s)
        starts = self.num_waiting + self._decayed_starts(now)
        if report.starts:
            starts = max(starts, report.starts * exp(-age / settings.start_s))
        visible = (self.millicpus - self.unseen_millicpus) * use / 1000
        cpus = visible + trust * (report.cpus_used - visible)
        cpus += self.unseen_millicpus * use / 1000 + starts * settings.start_cpus
        promised = self.memory_bytes - self.unseen_memory_bytes
        memory = self.memory_bytes + trust * (report.memory_used_bytes - promised)
        disk = self.promised_disk_bytes
        if request is not None:
            cpus += request.cpus * use + settings.start_cpus
            memory += request.memory_bytes
            disk += request.disk_bytes
        fullest = max(cpus / has.cpus, memory / has.memory_bytes, disk / has.disk_bytes)
        return fullest + settings.stale_penalty * (1.0 - trust)

    def headroom(self, now: float, use: float) -> int:
        """Thousandths of a CPU that may still be given away: the node's chance to be looked at.
        0 when nothing more may be promised; a hot node keeps a small chance."""
        has = self.node.capacity
        promised = max(
            self.millicpus / self.most_millicpus,
            self.promised_memory_bytes / has.memory_bytes,
            self.promised_disk_bytes / has.disk_bytes,
        )
        if promised >= 1.0:
            return 0
        room = min(1.0 - promised, max(0.02, 1.0 - self.share(now, use)))
        return max(1, int(1000 * has.cpus * room))
