"""What is asked of the scheduler, and what it answers."""

from typing import Literal

from pydantic import Field

from journeyman.types.failure import SandboxError
from journeyman.types.value import Value


class Spread(Value):
    """At most `most_per_node` sandboxes of one tenant with this key live on one node: a lost node
    then takes only so many of them along."""

    key: str = Field(min_length=1)
    most_per_node: int = Field(gt=0)


class PlacementRequest(Value):
    """One sandbox looks for a node. The limits are those it will run under."""

    sandbox: str = Field(min_length=1)
    tenant: str = "local"
    snapshot: str
    """Id of the template or snapshot it starts from."""
    driver: str
    cpus: float = Field(gt=0, allow_inf_nan=False)
    memory_bytes: int = Field(gt=0)
    disk_bytes: int = Field(default=0, ge=0)
    spread: Spread | None = None
    at_holder: bool = False
    """Only where the snapshot lies, or its own state does, so that nothing has to be copied."""


Start = Literal["local", "copy", "build"]


class Placement(Value):
    """Where a sandbox goes, and what has to happen before it can start there.

    `local`: the snapshot lies there. `copy`: it has to be fetched from `copy_from` first (for a
    hibernated sandbox this is a migration). `build`: no node has it.
    """

    sandbox: str
    node: str
    start: Start
    copy_from: str = ""


class NoCapacity(SandboxError):
    """No node can take a sandbox now. `resource` is what is short: `nodes`, `driver`,
    `snapshot`, `cpus`, `memory`, `disk`, `spread`, or several of them joined by ` and `."""

    def __init__(self, cause: str, cure: str = "", resource: str = "nodes") -> None:
        super().__init__(cause, cure)
        self.resource = resource
        self.args = (cause, cure, resource)
