"""What one agent did on one task. Written even when it fails."""

from enum import StrEnum

from journeyman.types.failure import Failure
from journeyman.types.message import Message
from journeyman.types.sample import TokenStream
from journeyman.types.value import Value
from journeyman.types.verdict import Verdict


class StopReason(StrEnum):
    """Why the turn loop ended."""

    SUBMITTED = "submitted"
    ANSWERED = "answered"
    """A reply without a tool call: in a person's session the agent hands the word back."""
    TOKENS = "tokens"
    TURNS = "turns"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """An infra failure or bug; `Episode.failure` says which."""


class Turn(Value):
    """One model reply and the tool results it led to, with their times."""

    reply: Message
    results: tuple[Message, ...] = ()
    model_s: float = 0.0
    tools_s: float = 0.0
    truncated: bool = False
    """The reply hit the token limit."""


class Episode(Value):
    """`streams` has one entry, or more where the history was edited (each starts a new Sample)."""

    id: str
    task: str
    group: str
    kind: str
    """train, held_out, oracle or session."""
    index: int = 0
    """Number of the attempt among those of its task in its group."""
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    streams: tuple[TokenStream, ...]
    stop: StopReason
    verdict: Verdict | None = None
    failure: Failure | None = None
    timings_s: dict[str, float] = {}
    started_at: float
    """Unix time, seconds."""
