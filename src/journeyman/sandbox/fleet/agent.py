"""A node's side of a fleet: it tells the manager how it is, and stops its sandboxes when the
manager can no longer be heard, before anybody else is given them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import httpx

from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.fleet.measure import Machine
from journeyman.sandbox.fleet.messages import (
    FLEET_API,
    Beat,
    BeatAnswer,
    FleetTimes,
    Join,
    Joined,
    Registration,
)
from journeyman.types.failure import SandboxError, SandboxGone, UserError

log = logging.getLogger(__name__)
_ANSWER_S = 5.0
_AT_ONCE = 4
"""Sandboxes hibernated side by side."""


async def join(control_url: str, ticket: str, node: str) -> str:
    """Exchange a ticket for this node's token. Raises UserError when it is void."""
    async with httpx.AsyncClient(base_url=control_url, timeout=30.0) as http:
        body = Join(ticket=ticket, node=node).model_dump()
        try:
            answer = await http.post(f"{FLEET_API}/join", json=body)
        except httpx.TransportError as error:
            raise SandboxError(
                f"the fleet's manager at {control_url} does not answer: {error!r}"
            ) from error
    if answer.is_error:
        raise UserError(
            f"node {node} may not join: {answer.text[:300]}", "Get a new ticket from the manager."
        )
    return Joined.model_validate_json(answer.content).token


class NodeAgent:
    """Produces registrations and beats; consumes the manager's answers. Waits for nothing else:
    a node that hears no answer for `fence_after_s` is on its own."""

    def __init__(
        self,
        control: httpx.AsyncClient,
        registration: Callable[[], Awaitable[Registration]],
        sandboxes: SandboxClient,
        machine: Machine,
        times: FleetTimes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`control` carries the node's token; `registration` tells what the node is now."""
        self._control = control
        self._registration = registration
        self._sandboxes = sandboxes
        self._machine = machine
        self._times = times
        self._clock = clock
        self._heard = clock()
        self.fenced = False
        """Nothing of the fleet runs here, until the manager is heard again."""

    async def run(self) -> None:
        """For ever. Raises UserError when the manager refuses this node's token."""
        while True:
            if await self.beat():
                self.fenced = False
            elif not self.fenced and self._clock() - self._heard > self._times.fence_after_s:
                await self.fence()
            await asyncio.sleep(self._times.beat_every_s)

    async def beat(self) -> bool:
        """Whether the manager answered and knows this node."""
        sent_at = self._clock()
        try:
            answer = await self._say()
            if not answer.known:
                await self._post("register", (await self._registration()).model_dump_json())
                answer = await self._say()
        except (httpx.TransportError, SandboxError) as error:
            log.warning("the fleet's manager does not answer: %s", error)
            return False
        for local in answer.drop:
            await self._end(local)
        # From when it was sent: the manager cannot have heard it earlier.
        self._heard = sent_at
        return answer.known

    async def _say(self) -> BeatAnswer:
        began = self._clock()
        usage = await asyncio.to_thread(self._machine.look)
        living = await self._sandboxes.list()
        snapshots = (await self._registration()).node.snapshots
        beat = Beat(
            age_s=self._clock() - began,
            cpus_used=usage.cpus_used,
            memory_used_bytes=usage.memory_used_bytes,
            disk_used_bytes=usage.disk_used_bytes,
            snapshots=snapshots,
            sandboxes={info.id: info.state for info in living},
        )
        return BeatAnswer.model_validate_json(await self._post("beat", beat.model_dump_json()))

    async def _post(self, what: str, body: str) -> bytes:
        headers = {"Content-Type": "application/json"}
        answer = await self._control.post(
            f"{FLEET_API}/{what}", content=body, headers=headers, timeout=_ANSWER_S
        )
        if answer.status_code in (401, 403):
            raise UserError(
                f"the fleet's manager refuses this node: {answer.text[:300]}",
                "It was removed from the fleet. Join again with a new ticket.",
            )
        if answer.is_error:
            raise SandboxError(f"the manager answered {answer.status_code}: {answer.text[:300]}")
        return answer.content

    async def fence(self) -> None:
        """Hibernate every sandbox, and end what has not been hibernated in time."""
        log.warning("the fleet's manager cannot be heard: sandboxes are hibernated")
        running = [info.id for info in await self._sandboxes.list() if info.state == "running"]
        at_once = asyncio.Semaphore(_AT_ONCE)
        tasks = {name: asyncio.create_task(self._hibernate(name, at_once)) for name in running}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=self._times.fence_s * 0.8)
        for name, task in tasks.items():
            task.cancel()
            if not task.done() or task.cancelled() or task.exception():
                await self._end(name)
        self.fenced = True

    async def _hibernate(self, local: str, at_once: asyncio.Semaphore) -> None:
        async with at_once:
            await (await self._sandboxes.connect(local)).hibernate()

    async def _end(self, local: str) -> None:
        try:
            await (await self._sandboxes.connect(local)).close()
            log.warning("sandbox %s was ended: it is not this node's any more", local)
        except SandboxGone:
            pass
        except SandboxError as error:
            log.warning("sandbox %s could not be ended: %s", local, error)
