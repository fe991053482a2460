"""Whatever happens to a fleet in whatever order: nothing is promised twice."""

from collections import Counter
from typing import Any

from fleet_values import GIB, node, report, request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from journeyman.sandbox.fleet.load import NodeLoad
from journeyman.sandbox.fleet.placement import NoCapacity, Spread
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.types.failure import SandboxError, UserError

NODES = [f"n{i}" for i in range(4)]
DRIVERS = [{"gvisor"}, {"gvisor", "qemu"}, {"qemu"}, {"gvisor"}]
names = st.sampled_from(NODES)


class FleetMachine(RuleBasedStateMachine):
    """Keeps its own book of what lives where, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(seed=1)
        self.now = 0.0
        self.requests: dict[str, Any] = {}
        self.where: dict[str, str] = {}
        self.resting: set[str] = set()
        self.count = 0
        for name, drivers in zip(NODES, DRIVERS, strict=True):
            made = node(name, cpus=4, memory=8, disk=20, drivers=drivers)
            self.scheduler.fleet.put_node(made, 0.0)

    def sandboxes(self, data: Any) -> str:
        return str(data.draw(st.sampled_from(sorted(self.where))))

    @rule(seconds=st.floats(0, 30))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule(
        cpus=st.sampled_from([0.1, 1, 2.5, 16]),
        memory=st.integers(1, 8),
        disk=st.integers(0, 20),
        driver=st.sampled_from(["gvisor", "qemu", "none"]),
        snapshot=st.sampled_from(["t-1", "t-2"]),
        spread=st.sampled_from([None, Spread(key="k", most_per_node=1)]),
    )
    def place(self, **asked: Any) -> None:
        self.count += 1
        wanted = request(f"s{self.count}", **asked)
        try:
            placement = self.scheduler.place(wanted, self.now)
        except NoCapacity:
            assert self.scheduler.fleet.reservation(wanted.sandbox) is None
            for load in self.scheduler.fleet.ready(wanted.driver):
                assert not load.fits(wanted)
            return
        self.settled(placement.node, wanted)

    def settled(self, name: str, wanted: Any) -> None:
        load = self.scheduler.fleet.node(name)
        assert load.node.state == "ready"
        assert wanted.driver in load.node.drivers
        self.requests[wanted.sandbox] = wanted
        self.where[wanted.sandbox] = name
        self.resting.discard(wanted.sandbox)

    @precondition(lambda self: self.where)
    @rule(data=st.data())
    def place_again(self, data: Any) -> None:
        sandbox = self.sandboxes(data)
        there = self.scheduler.fleet.node(self.where[sandbox]).node.state
        runs_well = sandbox not in self.resting and there == "ready"
        try:
            placement = self.scheduler.place(self.requests[sandbox], self.now)
        except NoCapacity:
            return
        except SandboxError:
            assert runs_well
            return
        assert not runs_well
        self.settled(placement.node, self.requests[sandbox])

    @precondition(lambda self: self.where)
    @rule(data=st.data(), what=st.sampled_from(["started", "rest", "release"]))
    def tell(self, data: Any, what: str) -> None:
        sandbox = self.sandboxes(data)
        getattr(self.scheduler.fleet, what)(sandbox, self.now)
        if what == "rest":
            self.resting.add(sandbox)
        if what == "release":
            del self.where[sandbox], self.requests[sandbox]
            self.resting.discard(sandbox)

    @rule(name=names, cpus=st.floats(0, 4), memory=st.integers(0, 8), age=st.floats(0, 20))
    def hear(self, name: str, cpus: float, memory: int, age: float) -> None:
        told = report(name, self.now - age, cpus, memory, disk_used_bytes=memory * GIB)
        self.scheduler.fleet.report(told, self.now)

    @rule(name=names, state=st.sampled_from(["ready", "draining", "lost"]))
    def change_state(self, name: str, state: Any) -> None:
        if name in self.scheduler.fleet.nodes:
            self.scheduler.fleet.set_state(name, state, self.now)

    @rule(name=names)
    def remove_and_add(self, name: str) -> None:
        before = self.scheduler.fleet.node(name).node
        try:
            self.scheduler.fleet.remove_node(name)
        except UserError:
            assert name in self.where.values()
            return
        assert name not in self.where.values()
        self.scheduler.fleet.put_node(before, self.now)

    # ---- what always holds

    def living(self, name: str) -> list[Any]:
        return [
            self.requests[sandbox]
            for sandbox, there in self.where.items()
            if there == name and sandbox not in self.resting
        ]

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        for name in NODES:
            has = self.scheduler.fleet.node(name).node.capacity
            living = self.living(name)
            disk = sum(self.requests[s].disk_bytes for s, n in self.where.items() if n == name)
            assert sum(r.memory_bytes for r in living) <= has.memory_bytes
            assert sum(r.cpus for r in living) <= has.cpus * 4 + 1e-9
            assert disk <= has.disk_bytes
            keys = Counter(r.spread.key for r in living if r.spread)
            assert all(number <= 1 for number in keys.values())

    @invariant()
    def the_books_agree(self) -> None:
        for name in NODES:
            load = self.scheduler.fleet.node(name)
            assert load.sandboxes.keys() == {s for s, n in self.where.items() if n == name}
            assert load.memory_bytes == sum(r.memory_bytes for r in self.living(name))
            assert_unseen_sums(load)

    @invariant()
    def only_ready_nodes_can_be_drawn(self) -> None:
        fleet = self.scheduler.fleet
        for driver, pool in fleet.pools.items():
            possible = sum(load.headroom(self.now, fleet.use) > 0 for load in fleet.ready(driver))
            assert pool.total == 0 or possible > 0


def assert_unseen_sums(load: NodeLoad) -> None:
    unseen = [each for each in load.sandboxes.values() if each.unseen]
    assert load.unseen_millicpus == sum(each.millicpus for each in unseen)
    assert load.unseen_memory_bytes == sum(each.memory_bytes for each in unseen)
    assert load.unseen_disk_bytes == sum(each.disk_bytes for each in unseen)
    assert load.starts >= 0


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
