"""A simulated node: what really happens on it, whatever the scheduler believes."""

from dataclasses import dataclass, field
from random import Random

from journeyman.sandbox.fleet.node import Capacity, Node, Pressure
from journeyman.sandbox.fleet.simulation.workload import GIB, Visitor

_SIZES = ((0.60, 32, 128, 2000), (0.25, 64, 256, 4000), (0.15, 96, 384, 8000))
"""Share of the nodes, CPUs, GiB of memory, GiB of disk."""
_WITH_QEMU = 0.25
_HAS_TEMPLATE = 0.03
START_CPU_S = 0.4
"""CPU-seconds of one start; on a crowded node it takes longer."""


@dataclass(slots=True, eq=False)
class Machine:
    node: Node
    living: dict[str, Visitor] = field(default_factory=dict)
    starting: set[str] = field(default_factory=set)
    cpus_used: float = 0.0
    memory_used_bytes: int = 0
    disk_used_bytes: int = 0
    alive: bool = True

    def begin(self, visitor: Visitor) -> float:
        """Seconds until it will have started."""
        name = visitor.request.sandbox
        self.living[name] = visitor
        self.starting.add(name)
        self.cpus_used += visitor.cpus_used
        self.memory_used_bytes += visitor.memory_used_bytes
        self.disk_used_bytes += visitor.request.disk_bytes // 2
        return START_CPU_S * max(1.0, self.demand / self.node.capacity.cpus)

    def end(self, name: str) -> None:
        visitor = self.living.pop(name)
        self.starting.discard(name)
        self.cpus_used -= visitor.cpus_used
        self.memory_used_bytes -= visitor.memory_used_bytes
        self.disk_used_bytes -= visitor.request.disk_bytes // 2

    @property
    def demand(self) -> float:
        """CPUs that would be used if there were enough."""
        return self.cpus_used + len(self.starting)

    @property
    def share(self) -> float:
        """The node's real pressure: of its fuller resource."""
        has = self.node.capacity
        return max(self.demand / has.cpus, self.memory_used_bytes / has.memory_bytes)

    def look(self, now: float, random: Random) -> Pressure:
        """What the node would report: a short look at the CPUs is a noisy one."""
        has = self.node.capacity
        noisy = max(0.0, random.gauss(self.demand, 0.05 * self.demand + 0.2))
        return Pressure(
            node=self.node.id,
            measured_at=now,
            cpus_used=min(has.cpus, noisy),
            memory_used_bytes=self.memory_used_bytes,
            disk_used_bytes=self.disk_used_bytes,
            starts=len(self.starting),
        )


def machines(count: int, templates: list[str], seed: int) -> list[Machine]:
    """Nodes of several sizes; each template lies on some of them, at least on one."""
    random = Random(f"{seed} nodes")
    shares = [size[0] for size in _SIZES]
    held: list[set[str]] = [set() for _ in range(count)]
    for template in templates:
        for number in random.sample(range(count), max(1, int(count * _HAS_TEMPLATE))):
            held[number].add(template)
    found = []
    for number in range(count):
        _, cpus, memory, disk = random.choices(_SIZES, shares)[0]
        qemu = number == 0 or random.random() < _WITH_QEMU
        node = Node(
            id=f"node-{number}",
            address="",
            capacity=Capacity(cpus=cpus, memory_bytes=memory * GIB, disk_bytes=disk * GIB),
            drivers=frozenset({"gvisor", "qemu"} if qemu else {"gvisor"}),
            snapshots=frozenset(held[number]),
        )
        found.append(Machine(node))
    return found
