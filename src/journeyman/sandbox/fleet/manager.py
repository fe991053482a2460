"""Many nodes as one sandbox service: creates go to the node that the scheduler chooses, calls to
the node that owns the sandbox."""

import asyncio
import logging
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from journeyman.sandbox.client import RemoteSandbox, SandboxClient, TemplateSpec
from journeyman.sandbox.fleet.messages import Beat, BeatAnswer, FleetTimes, Registration
from journeyman.sandbox.fleet.owner import Owner
from journeyman.sandbox.fleet.placement import NoCapacity, Placement, PlacementRequest
from journeyman.sandbox.fleet.recovery import Recovery
from journeyman.sandbox.fleet.registry import Registry
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.sandbox.fleet.specs import Specs
from journeyman.sandbox.fleet.sql_owners import Kept, SqlOwners
from journeyman.sandbox.wire.api import CreateRequest, SandboxInfo, SandboxState
from journeyman.types.failure import InfraError, SandboxError, SandboxGone
from journeyman.types.sandbox import Environment
from journeyman.types.value import Value

log = logging.getLogger(__name__)
_MOST_REFUSED = 10_000


class FleetSettings(Value):
    """What a sandbox is taken to need; its memory is what its template says, where that was built
    through the fleet."""

    times: FleetTimes = FleetTimes()
    driver: str = "gvisor"
    cpus: float = 2.0
    memory_bytes: int = 1 << 30
    disk_bytes: int = 1 << 30
    attempts: int = 3
    """Nodes tried for one sandbox before its creation fails."""


class Place(NamedTuple):
    """Where a sandbox is."""

    owner: Owner
    local: str
    """What its node calls it."""
    client: SandboxClient


class FleetManager:
    """Consumes what nodes say and what tenants ask for; waits only for the nodes that a tenant
    waits for. `tick` has to be called about every second.

    The map of sandboxes to nodes is in the database: after a restart the manager knows every
    sandbox again, and each node as soon as it has registered.
    """

    def __init__(
        self,
        owners: SqlOwners,
        scheduler: Scheduler,
        settings: FleetSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owners = owners
        self._scheduler = scheduler
        self._settings = settings or FleetSettings()
        self._clock = clock
        self._specs = Specs(owners.database)
        self._registry = Registry(scheduler, owners, self._settings.times, clock)
        self._recovery = Recovery(scheduler, owners, self._registry, clock)
        self.refused: deque[PlacementRequest] = deque(maxlen=_MOST_REFUSED)
        """What found no room lately; whoever scales the fleet takes them out."""
        self._building: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self) -> None:
        """Forget what was being created when an earlier life of this manager ended: nobody was
        told of it, and its lease ends it."""
        for row in await self._owners.kept(state="owned"):
            if not row.local and row.owner.epoch == 1:
                await self._owners.forget(row.owner.sandbox)

    async def close(self) -> None:
        """Close the connections to the nodes; their sandboxes live on."""
        await self._registry.close()

    # ---- nodes

    async def register(self, registration: Registration) -> None:
        async with self._recovery.quiet(registration.node.id):
            await self._registry.register(registration)

    async def beat(self, node: str, beat: Beat) -> BeatAnswer:
        return await self._registry.beat(node, beat)

    async def tick(self) -> None:
        """Settle nodes that fell silent."""
        await self._recovery.tick()

    # ---- templates

    async def build_template(self, spec: TemplateSpec) -> str:
        """Build it on one node; others build it when they need it. Raises UserError when a layer
        fails, NoCapacity when there is no node."""
        request = self._request(f"a template for {_new_id()}", "fleet", spec)
        placement = self._scheduler.place(request, self._clock())
        try:
            template = await self._registry.client(placement.node).build_template(spec)
        finally:
            self._scheduler.fleet.release(request.sandbox, self._clock())
            self._scheduler.fleet.snapshot_failed(request.snapshot, placement.node)
        await asyncio.to_thread(self._specs.put, template, spec)
        self._scheduler.fleet.snapshot_arrived(template, placement.node, self._clock())
        return template

    async def _ensure_template(self, template: str, spec: TemplateSpec, node: str) -> None:
        """Template ids are digests of everything that a template stands on: a node that builds
        the same spec to another id is another kind of machine."""
        async with self._building[template, node]:
            if self._scheduler.fleet.has_snapshot(template, node):
                return
            built = await self._registry.client(node).build_template(spec)
            if built != template:
                raise SandboxError(
                    f"node {node} builds template {template} as {built}: it has another engine, "
                    "root file system or CPU",
                    "Give the nodes of a fleet the same set-up.",
                )
            self._scheduler.fleet.snapshot_arrived(template, node, self._clock())

    # ---- sandboxes

    async def create(self, asked: CreateRequest, tenant: str) -> SandboxInfo:
        """Create it on the node that the scheduler chooses, or on another if that node fails.

        Raises NoCapacity naming what is short, UserError for a bad request, SandboxError when
        every node that was tried has failed. Nothing is left behind.
        """
        spec = await asyncio.to_thread(self._specs.get, asked.template)
        request = self._request(asked.template, tenant, spec)
        failures: list[str] = []
        for _ in range(self._settings.attempts):
            try:
                return await self._create_once(request, asked, spec)
            except NoCapacity:
                self.refused.append(request)
                raise
            except (InfraError, OSError) as error:
                failures.append(str(error))
                log.warning("sandbox %s was not created: %s", request.sandbox, error)
        raise SandboxError(
            f"sandbox of template {asked.template} was not created in "
            f"{self._settings.attempts} attempts: {'; '.join(failures)}",
            "Look at the logs of the nodes.",
        )

    async def _create_once(
        self, request: PlacementRequest, asked: CreateRequest, spec: TemplateSpec | None
    ) -> SandboxInfo:
        placement = self._scheduler.place(request, self._clock())
        try:
            owner = await self._owners.claim(request, placement.node, asked.lease_s)
            info = await self._create_on(placement, asked, spec)
            await self._owners.started_as(request.sandbox, owner.epoch, info.id)
        except BaseException:
            self._scheduler.fleet.release(request.sandbox, self._clock())
            await asyncio.shield(self._owners.forget(request.sandbox))
            raise
        self._registry.born(request.sandbox)
        self._scheduler.fleet.started(request.sandbox, self._clock())
        return info.model_copy(update={"id": request.sandbox})

    async def _create_on(
        self, placement: Placement, asked: CreateRequest, spec: TemplateSpec | None
    ) -> SandboxInfo:
        if placement.start != "local" and spec is not None:
            await self._ensure_template(asked.template, spec, placement.node)
        environment = Environment(
            template=asked.template, files=asked.files, stands_still=asked.stands_still
        )
        client = self._registry.client(placement.node)
        return (await client.create(environment, lease_s=asked.lease_s)).info

    async def locate(self, sandbox: str, tenant: str) -> Place:
        """Raises SandboxGone saying why, in the same words for another tenant's as for one that
        never was; SandboxError while it waits to be resumed elsewhere."""
        row = await self._owners.one(sandbox)
        if row is None or row.tenant != tenant:
            raise SandboxGone(
                f"sandbox {sandbox} is gone: this fleet does not know it", "Create a new one."
            )
        if row.owner.state == "lost":
            raise SandboxGone(f"sandbox {sandbox} is gone: {row.owner.reason}", "Create a new one.")
        if row.owner.state == "moving" or not row.local:
            raise SandboxError(
                f"sandbox {sandbox} is on its way to another node", "Try again in some seconds."
            )
        return Place(row.owner, row.local, self._registry.client(row.owner.node))

    async def get(self, sandbox: str, tenant: str) -> SandboxInfo:
        place = await self.locate(sandbox, tenant)
        remote = await place.client.connect(place.local)
        return remote.info.model_copy(update={"id": sandbox})

    async def list(self, tenant: str) -> list[SandboxInfo]:
        """As the record and the last beats say; no node is asked. Lost ones are not listed."""
        return [
            SandboxInfo(
                id=row.owner.sandbox,
                state=self._state(row),
                template=row.request.snapshot,
                created_at=row.created_at,
                lease_s=row.lease_s,
            )
            for row in await self._owners.kept(tenant=tenant)
            if row.owner.state != "lost"
        ]

    def _state(self, row: Kept) -> SandboxState:
        if not row.local:
            return "creating"
        reservation = self._scheduler.fleet.reservation(row.owner.sandbox)
        return "hibernated" if reservation is None or reservation.resting else "running"

    async def close_sandbox(self, sandbox: str, tenant: str) -> None:
        """Idempotent. One whose node does not answer is gone from the record at once, and from
        the node when that is back."""
        row = await self._owners.one(sandbox)
        if row is None or row.tenant != tenant:
            return
        await self._owners.forget(sandbox)
        self._scheduler.fleet.release(sandbox, self._clock())
        if not row.local:
            return
        try:
            client = self._registry.client(row.owner.node)
            await (await client.connect(row.local)).close()
        except SandboxError as error:
            log.info("sandbox %s is closed later: %s", sandbox, error)

    async def hibernate(self, sandbox: str, tenant: str) -> None:
        """What its memory and CPUs were promised to it for is free for others."""
        place = await self.locate(sandbox, tenant)
        await (await place.client.connect(place.local)).hibernate()
        self._scheduler.fleet.rest(sandbox, self._clock())

    async def resume(self, sandbox: str, tenant: str) -> None:
        """On its node, which has its state; that the node is full then shows in its reports."""
        place = await self.locate(sandbox, tenant)
        await (await place.client.connect(place.local)).resume()
        reservation = self._scheduler.fleet.reservation(sandbox)
        row = await self._owners.one(sandbox)
        if row and reservation and reservation.resting:
            self._scheduler.fleet.reserve(row.request, reservation.load, self._clock())

    async def fork(self, sandbox: str, tenant: str) -> SandboxInfo:
        """On the parent's node, where its state is. Raises NoCapacity when that has no room."""
        place = await self.locate(sandbox, tenant)
        row = await self._owners.one(sandbox)
        if row is None:
            raise SandboxGone(f"sandbox {sandbox} is gone: it ended meanwhile")
        name = _new_id()
        asked = row.request.model_copy(update={"sandbox": name})
        self._scheduler.place_on(asked, place.owner.node, self._clock())
        try:
            owner = await self._owners.claim(asked, place.owner.node, row.lease_s)
            parent: RemoteSandbox = await place.client.connect(place.local)
            child = await parent.fork()
            await self._owners.started_as(name, owner.epoch, child.id)
        except BaseException:
            self._scheduler.fleet.release(name, self._clock())
            await asyncio.shield(self._owners.forget(name))
            raise
        self._registry.born(name)
        self._scheduler.fleet.started(name, self._clock())
        return child.info.model_copy(update={"id": name, "parent": sandbox})

    def _request(self, template: str, tenant: str, spec: TemplateSpec | None) -> PlacementRequest:
        settings = self._settings
        return PlacementRequest(
            sandbox=_new_id(),
            tenant=tenant,
            snapshot=template,
            driver=settings.driver,
            cpus=settings.cpus,
            memory_bytes=spec.memory_bytes if spec else settings.memory_bytes,
            disk_bytes=settings.disk_bytes,
        )


def _new_id() -> str:
    return f"sb-{secrets.token_hex(8)}"
