"""Why a sandbox finds no node: which resource is short, and how much of it there is."""

from collections import Counter
from collections.abc import Callable

from journeyman.sandbox.fleet.fleet_load import FleetLoad
from journeyman.sandbox.fleet.load import NodeLoad
from journeyman.sandbox.fleet.placement import NoCapacity, PlacementRequest


def holders_of(
    fleet: FleetLoad, request: PlacementRequest, home: NodeLoad | None
) -> list[NodeLoad]:
    """Where the sandbox could start without anything being copied: at home, if it has one that
    is not lost, else where its snapshot lies."""
    if home is not None and home.node.state != "lost":
        return [home]
    return fleet.holders(request.snapshot)


def explain_shortage(
    fleet: FleetLoad, request: PlacementRequest, home: NodeLoad | None
) -> NoCapacity:
    """The error to raise. Looks at every node.

    What is short is what alone keeps the request from some node: the one that does so on most
    nodes. Where every node lacks several things, it is the fewest that are lacking together.
    """
    ready = [load for load in fleet.nodes.values() if load.node.state == "ready"]
    if not ready:
        return _error(request, "nodes", f"none of {len(fleet.nodes)} nodes is ready")
    suitable = [load for load in ready if request.driver in load.node.drivers]
    if not suitable:
        return _error(request, "driver", f"none of {len(ready)} ready nodes has that driver")
    if request.at_holder:
        held = holders_of(fleet, request, home)
        suitable = [load for load in suitable if load in held]
        if not suitable:
            return _error(request, "snapshot", f"no ready node has {request.snapshot}")
    lacking = Counter(tuple(load.obstacles(request)) for load in suitable)
    short = min(lacking, key=lambda names: (len(names), -lacking[names], names))
    details = "; ".join(_detail(name, suitable, request) for name in short)
    return _error(request, " and ".join(short), details)


def _error(request: PlacementRequest, resource: str, detail: str) -> NoCapacity:
    return NoCapacity(
        f"no node can take sandbox {request.sandbox} ({request.driver}, {request.cpus:g} CPUs, "
        f"{_gib(request.memory_bytes)} of memory, {_gib(request.disk_bytes)} of disk): "
        f"short of {resource}: {detail}",
        _CURES.get(resource, "Add nodes, end or hibernate sandboxes, or ask for less."),
        resource,
    )


_CURES = {
    "nodes": "Add nodes, or look why the ones there are drain or do not report.",
    "snapshot": "Wait for a node that has it, or create a new sandbox.",
    "driver": "Ask for a driver that the nodes have, or add nodes with this one.",
    "spread": "Allow more sandboxes of that key on one node, or add nodes.",
}


def _detail(resource: str, loads: list[NodeLoad], request: PlacementRequest) -> str:
    among = f"of {len(loads)} nodes"
    if resource == "spread" and request.spread:
        return (
            f"every one {among} has its {request.spread.most_per_node} sandboxes with the key "
            f"{request.spread.key!r}"
        )
    most, show = _FREE[resource]
    return f"the most {resource} that any {among} has left is {show(max(map(most, loads)))}"


def _gib(size: float) -> str:
    return f"{max(0.0, size) / 2**30:.3g} GiB"


_FREE: dict[str, tuple[Callable[[NodeLoad], float], Callable[[float], str]]] = {
    "cpus": (lambda load: (load.most_millicpus - load.millicpus) / 1000, lambda n: f"{n:g}"),
    "memory": (
        lambda load: load.node.capacity.memory_bytes - load.promised_memory_bytes,
        _gib,
    ),
    "disk": (lambda load: load.node.capacity.disk_bytes - load.promised_disk_bytes, _gib),
}
