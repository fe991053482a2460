"""What nodes and the manager of a fleet tell each other over HTTP: one place for both ends."""

from pydantic import Field

from journeyman.sandbox.fleet.node import Node
from journeyman.sandbox.wire.api import SandboxState
from journeyman.types.value import Value

FLEET_API = "/fleet/v1"


class Join(Value):
    """A host with a ticket becomes a node."""

    ticket: str
    node: str = Field(pattern=r"^[\w.-]{1,64}$")


class Joined(Value):
    token: str


class Registration(Value):
    """What a node says of itself when it starts, and when the manager has forgotten it."""

    node: Node
    service_token: str
    """With which the manager may call the node's sandbox service."""


class Beat(Value):
    """Sent every few seconds. `age_s`: how long ago the node looked at itself."""

    age_s: float = Field(ge=0, allow_inf_nan=False)
    cpus_used: float = Field(ge=0, allow_inf_nan=False)
    memory_used_bytes: int = Field(ge=0)
    disk_used_bytes: int = Field(ge=0)
    snapshots: frozenset[str]
    sandboxes: dict[str, SandboxState]
    """Every sandbox of the node, by the id it has there."""


class BeatAnswer(Value):
    """`known`: False when the node has to register again."""

    known: bool
    drop: tuple[str, ...] = ()
    """Sandboxes that belong to another node by now, or were reported lost: they must end."""


class FleetTimes(Value):
    """Both ends must agree on these. A node that hears nothing stops its sandboxes before the
    manager gives them to others."""

    beat_every_s: float = Field(default=2.0, gt=0)
    fence_after_s: float = Field(default=10.0, gt=0)
    """Without an answer for so long, a node hibernates what it has …"""
    fence_s: float = Field(default=10.0, gt=0)
    """… and ends what is not hibernated after so long."""
    lost_after_s: float = Field(default=25.0, gt=0)
    """Without a beat for so long, a node is lost."""

    def model_post_init(self, _: object) -> None:
        if not self.fence_after_s + self.fence_s < self.lost_after_s:
            raise ValueError(
                f"a node must have stopped ({self.fence_after_s} + {self.fence_s} s) before it "
                f"is lost ({self.lost_after_s} s), or a sandbox would live twice"
            )
