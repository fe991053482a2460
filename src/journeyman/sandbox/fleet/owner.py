"""Who owns a sandbox: the one node that may run it."""

from typing import Literal, Protocol

from journeyman.types.failure import SandboxError
from journeyman.types.value import Value

OwnerState = Literal["owned", "moving", "lost"]


class Owner(Value):
    """One sandbox. Its owner may run it, in this epoch; nobody else may. A copy of an older epoch
    is dead wherever it lies."""

    sandbox: str
    node: str
    epoch: int
    """Raised whenever the owner changes."""
    generation: int
    """Raised whenever it went back to an older snapshot: what it did since then is gone."""
    state: OwnerState = "owned"
    target: str = ""
    """Where it is moving to."""
    move: str = ""
    """Id of that move."""
    reason: str = ""
    """Why it was lost."""

    def open_move(self) -> "Move":
        """The move that is under way."""
        return Move(
            id=self.move,
            sandbox=self.sandbox,
            source=self.node,
            target=self.target,
            epoch=self.epoch,
        )


class Move(Value):
    """A migration that has begun. The source runs it in `epoch`, the target would in the next."""

    id: str
    sandbox: str
    source: str
    target: str
    epoch: int


class OwnershipError(SandboxError):
    """Somebody acted on an ownership that is no longer so. Nothing has changed."""


class Owners(Protocol):
    """The record of owners. Each method is one transaction: it happens whole or not at all.

    All of them raise OwnershipError when the sandbox is not as the caller takes it to be.
    """

    async def owner(self, sandbox: str) -> Owner | None:
        """None when it ended, or never was."""
        ...

    async def begin_move(self, sandbox: str, epoch: int, target: str) -> Move:
        """owned → moving. The owner stays the same."""
        ...

    async def commit_move(self, move: Move) -> Owner:
        """moving → owned by the target, in the next epoch."""
        ...

    async def settle_move(self, move: Move) -> Owner:
        """Make sure that the move is over: one that has not been committed never will be. Returns
        the owner. May be called by anybody at any time, and again."""
        ...

    async def rewind(self, sandbox: str, epoch: int) -> Owner:
        """The owner goes on from an older snapshot: the next generation."""
        ...

    async def give_up(self, sandbox: str, epoch: int, reason: str) -> Owner:
        """owned → lost."""
        ...
