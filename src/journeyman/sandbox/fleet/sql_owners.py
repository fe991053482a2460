"""The record of owners in a database: SQLite, or another one by URL."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from journeyman.sandbox.fleet.owner import Move, Owner, OwnershipError
from journeyman.sandbox.fleet.placement import PlacementRequest
from journeyman.sandbox.fleet.schema import FLEET, disowned, sandboxes
from journeyman.store.database import Database
from journeyman.types.value import Value

_OWNER = [sandboxes.c[name] for name in Owner.model_fields]
_SETTLED = {"state": "owned", "target": "", "move": ""}


class Kept(Value):
    """Everything that is known about one sandbox."""

    owner: Owner
    local: str
    """What its node calls it; empty until it has been started there."""
    tenant: str
    snapshot: str
    """Its last snapshot, empty where it has none."""
    request: PlacementRequest
    lease_s: float
    created_at: float
    """Seconds since the epoch."""


class SqlOwners:
    """Implements `Owners`, and what the manager of a fleet needs beside it.

    Every change names the epoch it is meant for and is one transaction that checks it.
    """

    def __init__(self, url: str) -> None:
        """Raises UserError for a database that cannot be used."""
        self.database = Database(url, FLEET)

    def close(self) -> None:
        self.database.close()

    # ---- as a node sees it

    async def owner(self, sandbox: str) -> Owner | None:
        return await asyncio.to_thread(self._owner, sandbox)

    async def begin_move(self, sandbox: str, epoch: int, target: str) -> Move:
        return await asyncio.to_thread(self._begin_move, sandbox, epoch, target)

    async def commit_move(self, move: Move) -> Owner:
        changes = {**_SETTLED, "node": move.target, "epoch": move.epoch + 1}
        return await asyncio.to_thread(self._end_move, move, changes)

    async def settle_move(self, move: Move) -> Owner:
        return await asyncio.to_thread(self._settle, move)

    async def rewind(self, sandbox: str, epoch: int) -> Owner:
        change = {"generation": sandboxes.c.generation + 1}
        return await asyncio.to_thread(self._change, sandbox, epoch, change)

    async def give_up(self, sandbox: str, epoch: int, reason: str) -> Owner:
        change = {"state": "lost", "reason": reason, "local": ""}
        return await asyncio.to_thread(self._change, sandbox, epoch, change)

    # ---- as the manager sees it

    async def claim(self, request: PlacementRequest, node: str, lease_s: float = 600.0) -> Owner:
        """The first owner of a new sandbox, in epoch 1. Raises OwnershipError if it has one."""
        return await asyncio.to_thread(self._claim, request, node, lease_s)

    async def started_as(self, sandbox: str, epoch: int, local: str) -> Owner:
        """Its node has started it, and calls it so."""
        return await asyncio.to_thread(self._change, sandbox, epoch, {"local": local})

    async def rehome(self, sandbox: str, epoch: int, node: str, local: str = "") -> Owner:
        """owned → owned by another node, in the next epoch and generation: it goes on there from
        its last snapshot, for its owner is lost."""
        change = {
            "node": node,
            "local": local,
            "epoch": sandboxes.c.epoch + 1,
            "generation": sandboxes.c.generation + 1,
        }
        return await asyncio.to_thread(self._change, sandbox, epoch, change)

    async def saved(self, sandbox: str, epoch: int, snapshot: str) -> Owner:
        """A newer snapshot of it exists."""
        return await asyncio.to_thread(self._change, sandbox, epoch, {"snapshot": snapshot})

    async def one(self, sandbox: str) -> Kept | None:
        """None when it ended, or never was."""
        found = await self.kept(sandbox=sandbox)
        return found[0] if found else None

    async def disowned(self, node: str) -> set[str]:
        """What a node may still have, by its own names, and must not have any more."""
        return await asyncio.to_thread(self._disowned, node)

    async def dropped(self, node: str, local: str) -> None:
        """A disowned sandbox is gone from its node. Idempotent."""
        await asyncio.to_thread(self._dropped, node, local)

    async def forget_lost(self, older_than_s: float) -> None:
        """Nobody asks any more what became of them."""
        await asyncio.to_thread(self._forget_lost, time.time() - older_than_s)

    async def forget(self, sandbox: str) -> None:
        """It ended. Idempotent."""
        await asyncio.to_thread(self._forget, sandbox)

    async def kept(
        self,
        *,
        sandbox: str | None = None,
        node: str | None = None,
        state: str | None = None,
        tenant: str | None = None,
    ) -> list[Kept]:
        """Sandboxes in order of their ids."""
        wanted = {"sandbox": sandbox, "node": node, "state": state, "tenant": tenant}
        filters = {name: value for name, value in wanted.items() if value is not None}
        return await asyncio.to_thread(self._kept, filters)

    async def unsettled(self) -> list[Move]:
        """Every move that has begun and not ended."""
        rows = await self.kept(state="moving")
        return [row.owner.open_move() for row in rows]

    # ---- transactions

    def _owner(self, sandbox: str) -> Owner | None:
        with self.database.read() as connection:
            return _read(connection, sandbox)

    def _claim(self, request: PlacementRequest, node: str, lease_s: float) -> Owner:
        owner, now = Owner(sandbox=request.sandbox, node=node, epoch=1, generation=1), time.time()
        row = {
            **owner.model_dump(),
            "local": "",
            "tenant": request.tenant,
            "snapshot": "",
            "request": request.model_dump_json(),
            "lease_s": lease_s,
            "created_at": now,
            "changed_at": now,
        }
        try:
            with self.database.write() as connection:
                connection.execute(insert(sandboxes).values(row))
        except IntegrityError:
            raise OwnershipError(f"sandbox {request.sandbox} has an owner already") from None
        return owner

    def _begin_move(self, sandbox: str, epoch: int, target: str) -> Move:
        changes = {"state": "moving", "target": target, "move": f"m-{secrets.token_hex(6)}"}
        return self._change(sandbox, epoch, changes).open_move()

    def _end_move(self, move: Move, changes: Mapping[str, Any]) -> Owner:
        with self.database.write() as connection:
            found = _read(connection, move.sandbox, to_change=True)
            if found is None or found.move != move.id:
                raise OwnershipError(
                    f"move {move.id} of sandbox {move.sandbox} from {move.source} to "
                    f"{move.target} is over: {_is(found)}"
                )
            return _write(connection, found, changes)

    def _settle(self, move: Move) -> Owner:
        with self.database.write() as connection:
            found = _read(connection, move.sandbox, to_change=True)
            if found is None:
                raise OwnershipError(f"sandbox {move.sandbox} has ended")
            return _write(connection, found, _SETTLED) if found.move == move.id else found

    def _change(self, sandbox: str, epoch: int, changes: Mapping[str, Any]) -> Owner:
        with self.database.write() as connection:
            found = _read(connection, sandbox, to_change=True)
            if found is None or (found.epoch, found.state) != (epoch, "owned"):
                raise OwnershipError(
                    f"sandbox {sandbox} is not owned in epoch {epoch}: {_is(found)}"
                )
            return _write(connection, found, changes)

    def _forget(self, sandbox: str) -> None:
        with self.database.write() as connection:
            _disown(connection, sandbox)
            connection.execute(delete(sandboxes).where(sandboxes.c.sandbox == sandbox))

    def _forget_lost(self, before: float) -> None:
        old = (sandboxes.c.state == "lost", sandboxes.c.changed_at < before)
        with self.database.write() as connection:
            connection.execute(delete(sandboxes).where(*old))

    def _disowned(self, node: str) -> set[str]:
        query = select(disowned.c.local).where(disowned.c.node == node)
        with self.database.read() as connection:
            return set(connection.scalars(query))

    def _dropped(self, node: str, local: str) -> None:
        query = delete(disowned).where(disowned.c.node == node, disowned.c.local == local)
        with self.database.write() as connection:
            connection.execute(query)

    def _kept(self, filters: Mapping[str, str]) -> list[Kept]:
        query = select(sandboxes).filter_by(**filters).order_by(sandboxes.c.sandbox)
        with self.database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [
            Kept(
                owner=Owner(**{name: row[name] for name in Owner.model_fields}),
                local=row["local"],
                tenant=row["tenant"],
                snapshot=row["snapshot"],
                request=PlacementRequest.model_validate_json(row["request"]),
                lease_s=row["lease_s"],
                created_at=row["created_at"],
            )
            for row in rows
        ]


def _read(connection: Connection, sandbox: str, *, to_change: bool = False) -> Owner | None:
    query = select(*_OWNER).where(sandboxes.c.sandbox == sandbox)
    if to_change:  # SQLite's writers wait for each other anyway
        query = query.with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return Owner(**row) if row else None


def _disown(connection: Connection, sandbox: str) -> None:
    """Whatever its node still has of it shall go."""
    query = select(sandboxes.c.node, sandboxes.c.local).where(sandboxes.c.sandbox == sandbox)
    row = connection.execute(query).one_or_none()
    if row and row.local:
        connection.execute(insert(disowned).values(node=row.node, local=row.local))


def _write(connection: Connection, found: Owner, changes: Mapping[str, Any]) -> Owner:
    if "local" in changes:
        _disown(connection, found.sandbox)
    query = update(sandboxes).where(sandboxes.c.sandbox == found.sandbox)
    connection.execute(query.values(**changes, changed_at=time.time()))
    changed = _read(connection, found.sandbox)
    assert changed is not None  # this transaction holds the row
    return changed


def _is(owner: Owner | None) -> str:
    if owner is None:
        return "it has ended"
    if owner.state == "lost":
        return f"it was lost: {owner.reason}"
    return f"it is {owner.state} by node {owner.node} in epoch {owner.epoch}"
