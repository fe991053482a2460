"""The nodes of a fleet, as the manager knows them: by what they say, and when they last did."""

import asyncio
import logging
from collections.abc import Callable

from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.fleet.messages import Beat, BeatAnswer, FleetTimes, Registration
from journeyman.sandbox.fleet.node import Pressure
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.sandbox.fleet.sql_owners import Kept, SqlOwners
from journeyman.types.failure import SandboxError

log = logging.getLogger(__name__)


class Registry:
    """Takes registrations and beats, keeps the scheduler's picture of each node, and tells which
    nodes have fallen silent. One connection to each node's service."""

    def __init__(
        self,
        scheduler: Scheduler,
        owners: SqlOwners,
        times: FleetTimes,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._owners = owners
        self._times = times
        self._clock = clock
        self._heard: dict[str, float] = {}
        self._born: dict[str, float] = {}
        self._clients: dict[str, SandboxClient] = {}

    def client(self, node: str) -> SandboxClient:
        """Raises SandboxError for a node that never registered with this manager's life."""
        try:
            return self._clients[node]
        except KeyError:
            raise SandboxError(
                f"node {node} has not been heard of since the fleet's manager started",
                "Wait for it to register, or look at its log.",
            ) from None

    def born(self, sandbox: str) -> None:
        """Its node has just said that it is there."""
        self._born[sandbox] = self._clock()

    async def register(self, registration: Registration) -> None:
        """A node is there (again), with the sandboxes that the record of owners gives it."""
        node = registration.node.model_copy(update={"state": "ready"})
        known = self._scheduler.fleet.nodes.get(node.id)
        if known is not None and known.node.state == "draining":
            node = node.model_copy(update={"state": "draining"})
        if old := self._clients.pop(node.id, None):
            await old.aclose()
        self._clients[node.id] = SandboxClient(node.address, registration.service_token)
        now = self._clock()
        self._heard[node.id] = now
        kept = await self._owners.kept(node=node.id)
        self._scheduler.fleet.put_node(node, now)
        for row in kept:
            self._remember(row, now)
        log.info("node %s registered with %s sandboxes", node.id, len(kept))

    def _remember(self, row: Kept, now: float) -> None:
        """What was promised before this manager's life is promised still."""
        fleet = self._scheduler.fleet
        if row.owner.state != "lost" and fleet.reservation(row.owner.sandbox) is None:
            fleet.reserve(row.request, fleet.node(row.owner.node), now)
            fleet.started(row.owner.sandbox, now)

    async def beat(self, node: str, beat: Beat) -> BeatAnswer:
        """What a node says every few seconds. A lost one has to register again: what it had may
        have been given to others."""
        fleet = self._scheduler.fleet
        load = fleet.nodes.get(node)
        if load is None or load.node.state == "lost" or node not in self._clients:
            return BeatAnswer(known=False)
        now, before = self._clock(), self._heard[node]
        self._heard[node] = now
        if beat.snapshots != load.node.snapshots:
            fleet.put_node(load.node.model_copy(update={"snapshots": beat.snapshots}), now)
        fleet.report(
            Pressure(
                node=node,
                measured_at=now - beat.age_s,
                cpus_used=beat.cpus_used,
                memory_used_bytes=beat.memory_used_bytes,
                disk_used_bytes=beat.disk_used_bytes,
            ),
            now,
        )
        await self._compare(node, beat, before, now)
        return BeatAnswer(known=True, drop=await self._to_drop(node, beat))

    async def _compare(self, node: str, beat: Beat, before: float, now: float) -> None:
        """Sandboxes end, hibernate and wake on their nodes without the manager being asked.

        A node looks at its sandboxes after it got the answer to its last beat, which was at
        `before` or later: what was there by then and is not listed has ended.
        """
        fleet = self._scheduler.fleet
        for row in await self._owners.kept(node=node, state="owned"):
            sandbox, reservation = row.owner.sandbox, fleet.reservation(row.owner.sandbox)
            state = beat.sandboxes.get(row.local)
            if not row.local or reservation is None:
                continue
            if state is None and self._born.get(sandbox, before) <= before:
                log.info("sandbox %s ended on node %s", sandbox, node)
                await self._owners.forget(sandbox)
                fleet.release(sandbox, now)
                self._born.pop(sandbox, None)
            elif state == "hibernated":
                fleet.rest(sandbox, now)
            elif state == "running" and reservation.resting:
                fleet.reserve(row.request, reservation.load, now)

    async def _to_drop(self, node: str, beat: Beat) -> tuple[str, ...]:
        disowned = await self._owners.disowned(node)
        for local in disowned - beat.sandboxes.keys():
            await self._owners.dropped(node, local)
        return tuple(sorted(disowned & beat.sandboxes.keys()))

    def silent(self) -> list[str]:
        """Nodes that are not lost yet and should be."""
        limit = self._clock() - self._times.lost_after_s
        nodes = self._scheduler.fleet.nodes
        return [
            name
            for name, heard in self._heard.items()
            if heard < limit and name in nodes and nodes[name].node.state != "lost"
        ]

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.aclose() for client in clients.values()))
