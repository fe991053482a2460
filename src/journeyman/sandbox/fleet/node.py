"""What the fleet knows about a node: what it could carry, and what it says it carries."""

from typing import Literal

from pydantic import Field

from journeyman.types.value import Value

NodeState = Literal["ready", "draining", "lost"]


class Capacity(Value):
    """What a node has to give. A node keeps something back for itself before it says this."""

    cpus: float = Field(gt=0, allow_inf_nan=False)
    memory_bytes: int = Field(gt=0)
    disk_bytes: int = Field(gt=0)


class Node(Value):
    """One machine that runs a sandbox service."""

    id: str = Field(min_length=1)
    address: str
    """URL of its sandbox service."""
    capacity: Capacity
    drivers: frozenset[str] = Field(min_length=1)
    snapshots: frozenset[str] = frozenset()
    """Ids of the templates and snapshots that lie on its disk."""
    state: NodeState = "ready"


class Pressure(Value):
    """One look of a node at itself."""

    node: str
    measured_at: float = Field(allow_inf_nan=False)
    """Seconds on the fleet's clock, not on the node's."""
    cpus_used: float = Field(ge=0, allow_inf_nan=False)
    memory_used_bytes: int = Field(ge=0)
    """Of the memory in the node's capacity, whoever uses it."""
    disk_used_bytes: int = Field(ge=0)
    starts: int = Field(default=0, ge=0)
    """Sandboxes that are being started right now."""
