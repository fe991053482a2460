"""What the scheduler assumes about nodes and starts. The defaults are for gVisor on shared CPUs."""

from pydantic import Field

from journeyman.types.value import Value


class SchedulerSettings(Value):
    """Shares are of a node's capacity, 1.0 being all of it."""

    choices: int = Field(default=4, ge=1)
    """Nodes looked at for one placement."""
    cpu_overcommit: float = Field(default=4.0, ge=1)
    """Promised CPUs for each real one: sandboxes wait for a model most of their time. Memory and
    disk are never promised twice."""
    start_cpus: float = Field(default=1.0, ge=0)
    """What a sandbox uses while it starts."""
    start_s: float = Field(default=1.0, gt=0)
    """The cost of a start that nobody has reported as done decays with this time constant."""
    settle_s: float = Field(default=1.0, ge=0)
    """A sandbox shows up in what its node measures this long after it was placed."""
    trust_s: float = Field(default=15.0, gt=0)
    """Time constant of the trust in a report as it ages."""
    stale_penalty: float = Field(default=0.2, ge=0)
    """Share added to a node of which nothing has been heard."""
    hot: float = Field(default=0.8, gt=0)
    """Above this share a node gets no sandbox merely because it has the snapshot."""
    copy_penalty: float = Field(default=0.1, ge=0)
    """How much fuller the node with the snapshot may be than another before copying is better."""
    first_use: float = Field(default=0.25, ge=0, le=1)
    """Share of its promised CPUs that a sandbox is taken to use before anything was measured."""
