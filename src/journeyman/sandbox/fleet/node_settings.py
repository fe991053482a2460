"""How a machine takes part in a fleet."""

from pathlib import Path

from journeyman.sandbox.fleet.messages import FleetTimes
from journeyman.types.value import Value


class NodeSettings(Value):
    """What a node has to know about itself and its manager."""

    node: str
    control_url: str
    address: str
    """Where the manager reaches this node, for instance http://10.0.0.7:8085."""
    host: str = "0.0.0.0"
    port: int = 8085
    drivers: tuple[str, ...] = ("gvisor",)
    state: Path
    templates: Path
    """Directory whose entries are the templates that lie here."""
    times: FleetTimes = FleetTimes()
