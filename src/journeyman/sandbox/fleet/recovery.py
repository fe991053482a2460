"""What the manager of a fleet does about nodes that fell silent."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from journeyman.sandbox.fleet.drain import plan_loss
from journeyman.sandbox.fleet.owner import Owner, OwnershipError
from journeyman.sandbox.fleet.placement import NoCapacity, Placement, PlacementRequest
from journeyman.sandbox.fleet.registry import Registry
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.sandbox.fleet.sql_owners import Kept, SqlOwners
from journeyman.types.failure import JourneymanError, UserError
from journeyman.types.sandbox import Environment

log = logging.getLogger(__name__)
_REMEMBERED_S = 7 * 86_400.0
"""How long it can be asked why a sandbox was lost."""


def resuming(row: Kept) -> PlacementRequest:
    """Only where its snapshot lies: nothing is copied from one node to another yet."""
    return row.request.model_copy(update={"snapshot": row.snapshot, "at_holder": True})


class Recovery:
    """Gives a lost node's sandboxes to others, or says that they are lost.

    The record changes before anything is started: what another node is about to run is the lost
    node's no more, should it come back just then.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        owners: SqlOwners,
        registry: Registry,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._owners = owners
        self._registry = registry
        self._clock = clock
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @asynccontextmanager
    async def quiet(self, node: str) -> AsyncIterator[None]:
        """No loss of the node is being settled while the block runs."""
        async with self._locks[node]:
            yield

    async def tick(self) -> None:
        """Settle nodes that fell silent, and try again what could not be settled before."""
        for node in self._registry.silent():
            async with self.quiet(node):
                await self._lose(node)
        for row in await self._owners.kept(state="owned"):
            if self._is_lost(row.owner.node):
                await self._move(row)
            elif not row.local and row.owner.epoch > 1:
                await self._try_again(row)

    async def _lose(self, node: str) -> None:
        await self._owners.forget_lost(_REMEMBERED_S)
        rows = {row.owner.sandbox: row for row in await self._owners.kept(node=node)}
        for row in rows.values():
            if row.owner.state == "moving":
                # Whoever conducts the move finds it called off.
                await self._owners.settle_move(row.owner.open_move())
        rows = {name: row for name, row in rows.items() if row.owner.state != "lost"}
        fleet, now = self._scheduler.fleet, self._clock()
        for sandbox in fleet.node(node).sandboxes.keys() - rows.keys():
            fleet.release(sandbox, now)  # it ended in the meantime
        requests = {name: resuming(row) for name, row in rows.items()}
        snapshots = {name: row.snapshot for name, row in rows.items() if row.snapshot}
        plan = plan_loss(self._scheduler, node, requests, snapshots, now)
        log.warning(
            "node %s is lost: %d sandboxes go on elsewhere, %d wait, %d are lost",
            *(node, len(plan.resumed), len(plan.waiting), len(plan.lost)),
        )
        for unplaced in plan.lost:
            await self._give_up(rows[unplaced.sandbox], unplaced.reason)
        for placement in plan.resumed:
            await self._rehome(rows[placement.sandbox], placement)

    async def _try_again(self, row: Kept) -> None:
        if self._scheduler.fleet.has_snapshot(row.snapshot, row.owner.node):
            await self._start(row, row.owner)
        else:
            await self._move(row)

    async def _move(self, row: Kept) -> None:
        """A sandbox that waited for room, or whose snapshot turned out to be gone."""
        if not row.snapshot or not self._scheduler.fleet.is_held(row.snapshot):
            await self._give_up(row, f"no node has its last snapshot {row.snapshot}".rstrip())
            return
        request = resuming(row)
        try:
            placement = self._scheduler.place(request, self._clock())
        except NoCapacity:
            return
        await self._rehome(row, placement)

    async def _rehome(self, row: Kept, placement: Placement) -> None:
        sandbox = placement.sandbox
        try:
            owner = await self._owners.rehome(sandbox, row.owner.epoch, placement.node)
        except OwnershipError as error:
            log.info("sandbox %s is not resumed: %s", sandbox, error)
            self._scheduler.fleet.release(sandbox, self._clock())
            return
        await self._start(row, owner)

    async def _start(self, row: Kept, owner: Owner) -> None:
        """From its last snapshot. What fails is tried again at the next tick."""
        fleet = self._scheduler.fleet
        try:
            client = self._registry.client(owner.node)
            made = await client.create(Environment(template=row.snapshot), lease_s=row.lease_s)
            await self._owners.started_as(owner.sandbox, owner.epoch, made.id)
        except UserError as error:
            log.warning("node %s has no snapshot %s: %s", owner.node, row.snapshot, error)
            fleet.snapshot_failed(row.snapshot, owner.node)
            fleet.release(owner.sandbox, self._clock())
            if not fleet.is_held(row.snapshot):
                await self._give_up(
                    row.model_copy(update={"owner": owner}), f"its snapshot is gone: {error.cause}"
                )
        except (JourneymanError, OSError) as error:
            log.warning("sandbox %s is not resumed yet: %s", owner.sandbox, error)
        else:
            self._registry.born(owner.sandbox)
            fleet.started(owner.sandbox, self._clock())
            log.info("sandbox %s goes on on node %s", owner.sandbox, owner.node)

    async def _give_up(self, row: Kept, reason: str) -> None:
        self._scheduler.fleet.release(row.owner.sandbox, self._clock())
        try:
            await self._owners.give_up(row.owner.sandbox, row.owner.epoch, reason)
        except OwnershipError as error:
            log.info("sandbox %s is not lost: %s", row.owner.sandbox, error)

    def _is_lost(self, node: str) -> bool:
        load = self._scheduler.fleet.nodes.get(node)
        return load is not None and load.node.state == "lost"
