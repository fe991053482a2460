"""Moving a sandbox from one node to another, so that exactly one copy of it lives.

    begin      the record says: moving; the source still owns it
    prepare    the source stops it and keeps everything on disk
    receive    the target gets the copy and leaves it stopped
    commit     one transaction: the target owns it, in the next epoch
    settle     the target runs it, the source removes what it has

Before the commit the source goes on if anything fails, after it the target does. Whoever was
killed asks the record when it is back; whoever is gone for good is a lost node. What was written
to a sandbox while it moved does not exist: it stands still from `prepare` on.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from journeyman.sandbox.fleet.copies import MigrationSide
from journeyman.sandbox.fleet.owner import Move, Owner, Owners, OwnershipError
from journeyman.types.failure import SandboxError

log = logging.getLogger(__name__)


class MigrationFailed(SandboxError):
    """The sandbox did not move; it is where it was, unless the message says that it ended."""


async def migrate(
    owners: Owners, source: MigrationSide, target: MigrationSide, sandbox: str
) -> Owner:
    """Move it; returns the new owner. Raises MigrationFailed, OwnershipError when it is not the
    source's to give. Cancelled before the commit, it calls the move off."""
    before = await owners.owner(sandbox)
    if before is None or before.node != source.id:
        raise OwnershipError(f"sandbox {sandbox} is not on node {source.id}")
    move = await owners.begin_move(sandbox, before.epoch, target.id)
    sides = {source.id: source, target.id: target}
    try:
        await source.prepare(move)
        await target.receive(move)
        owner = await owners.commit_move(move)
    except BaseException as error:
        after = await asyncio.shield(_finish(owners, move, sides))
        if not isinstance(error, Exception):
            raise
        if after is not None and (after.node, after.epoch) == (target.id, move.epoch + 1):
            return after  # it was committed, only the answer was lost
        raise MigrationFailed(
            f"sandbox {sandbox} did not move from node {source.id} to {target.id}: {error}",
            "It is where it was." if after else "It has ended meanwhile.",
        ) from error
    await _settle(owner, sandbox, sides)
    return owner


async def finish_moves(
    owners: Owners, moves: Iterable[Move], sides: Mapping[str, MigrationSide]
) -> None:
    """What a conductor does after a restart with the moves that its former life left open."""
    for move in moves:
        await _finish(owners, move, sides)


async def _finish(owners: Owners, move: Move, sides: Mapping[str, MigrationSide]) -> Owner | None:
    """Call off what was not committed, and let both sides do accordingly. None: it has ended."""
    owner: Owner | None
    try:
        owner = await owners.settle_move(move)
    except OwnershipError:
        owner = None
    both = {name: sides[name] for name in (move.source, move.target) if name in sides}
    await _settle(owner, move.sandbox, both)
    return owner


async def _settle(owner: Owner | None, sandbox: str, sides: Mapping[str, MigrationSide]) -> None:
    """The owner first: the other's copy is not given away before the owner's runs."""
    first = owner.node if owner else ""
    for name in sorted(sides, key=lambda name: name != first):
        try:
            await sides[name].settle(sandbox)
        except (OSError, SandboxError) as error:
            # It settles by itself when it is back; the record is what counts.
            log.warning("node %s did not settle sandbox %s: %s", name, sandbox, error)
            if name == first:
                return
