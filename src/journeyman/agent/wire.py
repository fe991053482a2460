"""What goes over the agent server's wire. Unknown keys are refused."""

from typing import Literal

from pydantic import Field

from journeyman.types import Budget, Environment, StopReason, Value

SESSION = "session"


class SessionRequest(Value):
    """Open a session. Without an environment the server's own default is used."""

    environment: Environment | None = None
    budget: Budget = Budget()
    temperature: float = Field(default=1.0, ge=0)
    seed: int | None = None
    kind: str = SESSION
    task: str = ""
    group: str = ""
    lease_s: float = Field(default=600.0, gt=0)
    """The sandbox lives this long after its last use."""


class SessionInfo(Value):
    """An open session. `sandbox` is the id under which a verifier finds the agent's work."""

    id: str
    sandbox: str
    kind: str
    task: str
    state: Literal["idle", "running", "closed"]
    stop: StopReason | None = None
    """Why the last turn loop ended."""
    events: int
    """Number of the last event."""
    created_at: float


class UserMessage(Value):
    """What the person or the task says."""

    content: str = Field(min_length=1, max_length=1 << 20)


class Command(Value):
    """A command a person runs in the session's sandbox; the model does not learn of it."""

    command: str = Field(min_length=1)
    timeout_s: float | None = Field(default=None, gt=0)


class CommandOutput(Value):
    """What it said, as the agent's own `bash` would show it, only longer."""

    text: str


class ErrorBody(Value):
    """Every error of the server. `type` is the class in `journeyman.types.failure`."""

    type: str
    cause: str
    cure: str = ""
