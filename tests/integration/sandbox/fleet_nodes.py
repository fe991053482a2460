"""A fleet on this machine: a manager, and nodes with sandbox services of their own."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn

from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.fleet.agent import NodeAgent, join
from journeyman.sandbox.fleet.app import create_fleet_app
from journeyman.sandbox.fleet.manager import FleetManager, FleetSettings
from journeyman.sandbox.fleet.measure import Machine, Usage
from journeyman.sandbox.fleet.messages import FleetTimes, Registration
from journeyman.sandbox.fleet.node import Capacity, Node
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.sandbox.fleet.sql_owners import SqlOwners
from journeyman.sandbox.fleet.tokens import Tokens
from journeyman.sandbox.wire.token import token_path

GIB = 1 << 30
TIMES = FleetTimes(beat_every_s=0.3, fence_after_s=4.0, fence_s=8.0, lost_after_s=14.0)


async def until(holds: Callable[[], Awaitable[bool] | bool]) -> None:
    """Wait for something that happens by itself, and fail when it never does."""
    async with asyncio.timeout(90):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.05)


class PartOfMachine(Machine):
    """Several nodes share this machine; what it uses as a whole is none's own."""

    def look(self) -> Usage:
        return Usage(cpus_used=0.1, memory_used_bytes=0, disk_used_bytes=0)


@dataclass
class NodeProcess:
    """A sandbox service as a process of its own, and the agent that speaks for it."""

    name: str
    directory: Path
    service: asyncio.subprocess.Process
    control: httpx.AsyncClient
    agent: NodeAgent
    beating: asyncio.Task[None]
    sandboxes: SandboxClient
    snapshots: set[str] = field(default_factory=set)

    async def kill(self) -> None:
        """As a machine that loses its power."""
        self.beating.cancel()
        os.kill(self.service.pid, signal.SIGKILL)
        await self.service.wait()

    async def stop(self) -> None:
        self.beating.cancel()
        if self.service.returncode is not None:
            # Its next life removes what the killed one left behind.
            self.service = await _start_service(self.directory)
        if self.service.stdin:
            self.service.stdin.close()
        await self.service.wait()
        await self.control.aclose()
        await self.sandboxes.aclose()


class Fleet:
    """The manager runs in this process, so that tests can take it away and bring it back."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.owners = SqlOwners(f"sqlite:///{directory / 'fleet.db'}")
        self.tokens = Tokens(self.owners.database)
        self.nodes: dict[str, NodeProcess] = {}
        self.url = ""
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._port = 0

    async def start_manager(self) -> None:
        self.scheduler = Scheduler(seed=1)
        self.manager = FleetManager(self.owners, self.scheduler, FleetSettings(times=TIMES))
        app = create_fleet_app(self.manager, self.tokens)
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self._port, log_level="warning",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        server = self._server
        await until(lambda: server.started)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop_manager(self) -> None:
        if self._server and self._serving:
            self._server.should_exit = True
            await self._serving

    def client(self, tenant: str) -> SandboxClient:
        return SandboxClient(self.url, self.tokens.add_tenant(tenant))

    async def add_node(self, name: str, memory_gib: int = 8) -> NodeProcess:
        directory = self._directory / name
        directory.mkdir()
        socket = directory / "socket"
        service = await _start_service(directory)
        token = await join(self.url, self.tokens.add_ticket(), name)
        snapshots: set[str] = set()

        async def registration() -> Registration:
            capacity = Capacity(cpus=2, memory_bytes=memory_gib * GIB, disk_bytes=1000 * GIB)
            node = Node(
                id=name,
                address=f"unix://{socket}",
                capacity=capacity,
                drivers=frozenset({"gvisor"}),
                snapshots=frozenset(snapshots),
            )
            return Registration(
                node=node, service_token=token_path(socket).read_text(encoding="utf-8")
            )

        control = httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )
        sandboxes = SandboxClient(f"unix://{socket}")
        agent = NodeAgent(control, registration, sandboxes, PartOfMachine(directory), TIMES)
        assert await agent.beat()
        beating = asyncio.create_task(agent.run())
        node = NodeProcess(name, directory, service, control, agent, beating, sandboxes, snapshots)
        self.nodes[name] = node
        return node

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.stop()
        await self.stop_manager()
        self.owners.close()


async def _start_service(directory: Path) -> asyncio.subprocess.Process:
    socket = directory / "socket"
    socket.unlink(missing_ok=True)
    with (directory / "log").open("wb") as log:
        service = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "journeyman.sandbox.service", "--socket", str(socket)),
            *("--state", str(directory / "state"), "--driver", "gvisor", "--lifeline"),
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    await until(lambda: socket.exists() or service.returncode is not None)
    assert service.returncode is None, (directory / "log").read_text()
    return service


@contextlib.asynccontextmanager
async def running_fleet(directory: Path, *nodes: str) -> AsyncIterator[Fleet]:
    """A manager and its nodes, all gone at the end."""
    fleet = Fleet(directory)
    try:
        await fleet.start_manager()
        for name in nodes:
            await fleet.add_node(name)
        yield fleet
    finally:
        await fleet.close()
