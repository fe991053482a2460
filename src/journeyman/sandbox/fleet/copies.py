"""The copies of sandboxes that lie on one node, and which of them it may run."""

import asyncio
import logging
from typing import Protocol

from journeyman.sandbox.fleet.owner import Move, Owner, Owners, OwnershipError
from journeyman.types.failure import SandboxError, SandboxGone
from journeyman.types.value import Value

log = logging.getLogger(__name__)


class Copy(Value):
    """One sandbox as it lies on a node. The node's disk says all this, also after a crash."""

    sandbox: str
    epoch: int
    """Of the ownership under which it may run."""
    held: str = ""
    """Id of the move for which it must stand still; empty where it may run."""
    behind: bool = False
    """What is on disk is older than what had happened when it stopped: its service was killed."""


class CopyEngine(Protocol):
    """What a node can do with its copies. Each call happens whole or not at all, and lasts.

    What is not held may run: at once, or when somebody uses it.
    """

    async def copies(self) -> list[Copy]: ...

    async def stop(self, sandbox: str, move: str) -> None:
        """Hold it for the move; everything that has happened in it is on disk."""
        ...

    async def fetch(self, move: Move) -> None:
        """Get the stopped copy from the source, checked by digest; it is held for the move, of
        the move's next epoch. One that is here already is replaced."""
        ...

    async def let_run(self, sandbox: str) -> None:
        """It is held no longer."""
        ...

    async def remove(self, sandbox: str) -> None:
        """Idempotent."""
        ...


class MigrationSide(Protocol):
    """A node, as whoever conducts a migration calls it. Every call may be repeated."""

    @property
    def id(self) -> str: ...

    async def prepare(self, move: Move) -> None:
        """As the source: make the sandbox ready to be fetched. It stands still from the end of
        this call on, or, where memory is copied while it runs, of the target's `receive`."""
        ...

    async def receive(self, move: Move) -> None:
        """As the target: get the copy, and do not run it. At the end it is complete and durable
        here, and the source stands still."""
        ...

    async def settle(self, sandbox: str) -> None:
        """Do what the record of owners says: run the copy, leave it, or remove it."""
        ...


class NodeCopies:
    """Implements `MigrationSide`. The record of owners is asked before anything runs: no message,
    late, lost or repeated, makes a node run what another one owns."""

    def __init__(self, node: str, owners: Owners, engine: CopyEngine) -> None:
        self._node = node
        self._owners = owners
        self._engine = engine
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def id(self) -> str:
        return self._node

    async def recover(self) -> None:
        """After a start, before anybody is served. Moves away from here that were not committed
        are called off: what had been agreed for them was forgotten."""
        for copy in await self._engine.copies():
            async with self._lock(copy.sandbox):
                owner = await self._owners.owner(copy.sandbox)
                if owner and owner.node == self._node and owner.state == "moving":
                    await self._call_off(owner)
            await self.settle(copy.sandbox)

    async def prepare(self, move: Move) -> None:
        async with self._lock(move.sandbox):
            copy = await self._copy(move.sandbox)
            owner = await self._owners.owner(move.sandbox)
            if copy is None or copy.epoch != move.epoch:
                raise SandboxGone(
                    f"sandbox {move.sandbox} is not on node {self._node} in epoch {move.epoch}"
                )
            if copy.behind:
                # Moving it would hide that it went back to an older snapshot.
                raise SandboxError(
                    f"sandbox {move.sandbox} died with its service and has not been settled yet",
                    "Let the node recover first.",
                )
            self._check_current(owner, move)
            await self._engine.stop(move.sandbox, move.id)

    async def receive(self, move: Move) -> None:
        async with self._lock(move.sandbox):
            owner = await self._owners.owner(move.sandbox)
            self._check_current(owner, move)
            await self._engine.fetch(move)

    async def settle(self, sandbox: str) -> None:
        async with self._lock(sandbox):
            copy = await self._copy(sandbox)
            if copy is None:
                return
            owner = await self._owners.owner(sandbox)
            if owner is not None and self._is_undecided(owner, copy):
                return
            if owner is None or not self._is_mine(owner, copy):
                await self._engine.remove(sandbox)
                return
            if copy.behind:
                await self._owners.rewind(sandbox, copy.epoch)
            await self._engine.let_run(sandbox)

    @staticmethod
    def _check_current(owner: Owner | None, move: Move) -> None:
        if owner is None or owner.move != move.id:
            raise OwnershipError(f"move {move.id} of sandbox {move.sandbox} is over")

    def _is_mine(self, owner: Owner, copy: Copy) -> bool:
        return (owner.node, owner.epoch, owner.state) == (self._node, copy.epoch, "owned")

    def _is_undecided(self, owner: Owner, copy: Copy) -> bool:
        """A move that is under way needs this copy, whichever way it ends."""
        leaves = (owner.node, owner.epoch) == (self._node, copy.epoch)
        comes = (owner.target, owner.move) == (self._node, copy.held)
        return owner.state == "moving" and (leaves or comes)

    async def _call_off(self, owner: Owner) -> None:
        move = owner.open_move()
        settled = await self._owners.settle_move(move)
        log.warning("move %s of sandbox %s was called off: %s", move.id, move.sandbox, settled)

    async def _copy(self, sandbox: str) -> Copy | None:
        copies = await self._engine.copies()
        return next((copy for copy in copies if copy.sandbox == sandbox), None)

    def _lock(self, sandbox: str) -> asyncio.Lock:
        return self._locks.setdefault(sandbox, asyncio.Lock())
