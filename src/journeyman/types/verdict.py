"""What a verifier said."""

from typing import Protocol

from pydantic import Field

from journeyman.types.failure import Failure
from journeyman.types.sandbox import Sandbox
from journeyman.types.task import Task
from journeyman.types.value import Value


class Verdict(Value):
    """`reward` is in [0, 1], or None when no trustworthy verdict exists (then `failure` says why).

    `tree` is the digest of the final tree that was judged: equal trees of one task share one
    verdict. `flags` name attempts to cheat ("edited tests/test_x.py"); a flagged verdict is 0.
    """

    reward: float | None = Field(ge=0, le=1)
    tree: str
    flags: tuple[str, ...] = ()
    failure: Failure | None = None
    duration_s: float = 0.0
    cached: bool = False


class Verifier(Protocol):
    """Judges the state an agent left behind, in a fresh sandbox of its own."""

    async def grade(self, task: Task, workspace: Sandbox) -> Verdict:
        """Never raises for what the agent did; raises InfraError when a machine failed."""
        ...
