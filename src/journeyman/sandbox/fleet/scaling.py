"""Doing what the autoscaler decides."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from journeyman.sandbox.fleet.autoscale import Autoscaler, ScaleDecision
from journeyman.sandbox.fleet.fleet_load import FleetLoad
from journeyman.sandbox.fleet.manager import FleetManager
from journeyman.sandbox.fleet.provider import HostProvider, HostShortage
from journeyman.sandbox.fleet.tokens import Tokens
from journeyman.types.failure import JourneymanError, UserError

log = logging.getLogger(__name__)


class Scaling:
    """Starts, drains and ends hosts. Waits for the provider only; call `tick` twice a minute."""

    def __init__(
        self,
        manager: FleetManager,
        fleet: FleetLoad,
        tokens: Tokens,
        provider: HostProvider,
        autoscaler: Autoscaler,
        clock: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._fleet = fleet
        self._tokens = tokens
        self._provider = provider
        self._autoscaler = autoscaler
        self._clock = clock

    async def tick(self) -> ScaleDecision:
        """Returns what was decided. A provider's refusal is logged and tried again later."""
        hosts = await asyncio.to_thread(self._provider.hosts)
        refused = list(self._manager.refused)
        self._manager.refused.clear()
        now = self._clock()
        decision = self._autoscaler.decide(self._fleet, hosts, refused, now)
        for host in decision.terminate:
            await self._terminate(host)
        if decision.drain:
            log.info("node %s drains: the fleet is larger than it has to be", decision.drain)
            self._fleet.set_state(decision.drain, "draining", now)
        if decision.start:
            await self._start(decision.start)
        return decision

    async def _start(self, count: int) -> None:
        try:
            started = await asyncio.to_thread(self._provider.start, count)
            log.info("%d hosts start, of %d wanted", len(started), count)
        except HostShortage as error:
            log.warning("%d more hosts are wanted: %s", count, error)

    async def _terminate(self, host: str) -> None:
        """The host first: while it may still run, its token must not be given to another."""
        try:
            await asyncio.to_thread(self._provider.terminate, host)
        except JourneymanError as error:
            log.warning("host %s is not ended: %s", host, error)
            return
        await asyncio.to_thread(self._tokens.revoke_node, host)
        with suppress(UserError):  # something was placed there just now: at the next tick
            if host in self._fleet.nodes:
                self._fleet.remove_node(host)
        log.info("host %s was ended", host)
