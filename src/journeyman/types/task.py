"""One problem with a verifier. On disk it is a Harbor task directory."""

from typing import Literal

from journeyman.types.value import Value

Split = Literal["warm", "train", "held_out"]
"""warm: supervised warm start; train: reinforcement learning; held_out: never trained on."""


class Budget(Value):
    """What one episode may use. Going over it is the policy's doing."""

    tokens: int = 768
    """Length of the whole token stream, prompt and tool results included."""
    reply_tokens: int = 160
    """Length of one reply."""
    turns: int = 8
    deadline_s: float = 120.0


class Provenance(Value):
    """Where a generated task came from."""

    project: str
    version: str
    path: str
    function: str
    mutation: str
    seed: int


class Task(Value):
    """A task as the loop sees it; `directory` is its Harbor directory on this machine."""

    id: str
    instruction: str
    directory: str
    split: Split
    digest: str
    """sha256 over every file of the directory, names included."""
    budget: Budget = Budget()
    provenance: Provenance | None = None
