"""Nodes, reports and requests for tests of the fleet, with short ways to say them."""

from typing import Any

from journeyman.sandbox.fleet.node import Capacity, Node, Pressure
from journeyman.sandbox.fleet.placement import PlacementRequest
from journeyman.sandbox.fleet.scheduler import Scheduler

GIB = 1 << 30


def node(name: str, cpus: float = 32, memory: int = 64, disk: int = 500, **more: Any) -> Node:
    """Memory and disk in GiB."""
    fields: dict[str, Any] = {"address": "", "drivers": {"gvisor"}, **more}
    capacity = Capacity(cpus=cpus, memory_bytes=memory * GIB, disk_bytes=disk * GIB)
    return Node(id=name, capacity=capacity, **fields)


def request(name: str, cpus: float = 2, memory: int = 1, disk: int = 1, **more: Any) -> Any:
    fields: dict[str, Any] = {"snapshot": "t-1", "driver": "gvisor", **more}
    return PlacementRequest(
        sandbox=name, cpus=cpus, memory_bytes=memory * GIB, disk_bytes=disk * GIB, **fields
    )


def report(name: str, at: float, cpus: float = 0, memory: int = 0, **more: Any) -> Pressure:
    fields: dict[str, Any] = {"disk_used_bytes": 0, **more}
    return Pressure(
        node=name, measured_at=at, cpus_used=cpus, memory_used_bytes=memory * GIB, **fields
    )


def scheduler(*nodes: Node, now: float = 0.0, **more: Any) -> Scheduler:
    made = Scheduler(**more)
    for each in nodes:
        made.fleet.put_node(each, now)
    return made
