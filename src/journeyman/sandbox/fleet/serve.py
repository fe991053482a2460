"""Running a fleet's manager, and a node that belongs to one."""

import asyncio
import logging
import os
import secrets
import time
from pathlib import Path

import httpx
import uvicorn

from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.fleet.agent import NodeAgent, join
from journeyman.sandbox.fleet.app import create_fleet_app
from journeyman.sandbox.fleet.autoscale import Autoscaler
from journeyman.sandbox.fleet.config import FleetConfig
from journeyman.sandbox.fleet.ec2 import Ec2Hosts
from journeyman.sandbox.fleet.entrance import create_entrance
from journeyman.sandbox.fleet.manager import FleetManager
from journeyman.sandbox.fleet.measure import Machine
from journeyman.sandbox.fleet.messages import Registration
from journeyman.sandbox.fleet.node import Node
from journeyman.sandbox.fleet.node_settings import NodeSettings
from journeyman.sandbox.fleet.scaling import Scaling
from journeyman.sandbox.fleet.scheduler import Scheduler
from journeyman.sandbox.fleet.sql_owners import SqlOwners
from journeyman.sandbox.fleet.tokens import Tokens
from journeyman.types.failure import JourneymanError

log = logging.getLogger(__name__)
_SCALE_EVERY_S = 30.0


async def serve_fleet(url: str, host: str, port: int, config: FleetConfig) -> None:
    """Run the manager until SIGTERM or SIGINT. Raises UserError when it cannot start."""
    owners = SqlOwners(url)
    tokens = Tokens(owners.database)
    scheduler = Scheduler(config.scheduler, seed=secrets.randbits(32))
    manager = FleetManager(owners, scheduler, config.fleet)
    scaling = _scaling(config, manager, scheduler, tokens)
    server = uvicorn.Server(_server_config(create_fleet_app(manager, tokens), host, port))
    scaler = asyncio.create_task(_scale(scaling)) if scaling else None
    try:
        await server.serve()
    finally:
        if scaler:
            scaler.cancel()
        owners.close()


def _scaling(
    config: FleetConfig, manager: FleetManager, scheduler: Scheduler, tokens: Tokens
) -> Scaling | None:
    if config.ec2 is None or config.scale is None or config.bootstrap is None:
        return None
    bootstrap = config.bootstrap
    hosts = Ec2Hosts(config.ec2, lambda: bootstrap.with_ticket(tokens.add_ticket()).script())
    autoscaler = Autoscaler(config.scale)
    return Scaling(manager, scheduler.fleet, tokens, hosts, autoscaler, time.monotonic)


async def _scale(scaling: Scaling) -> None:
    while True:
        await asyncio.sleep(_SCALE_EVERY_S)
        try:
            await scaling.tick()
        except JourneymanError as error:
            log.error("the fleet is not scaled: %s", error)


async def serve_node(settings: NodeSettings, service_url: str, ticket: str | None) -> None:
    """Let the sandbox service at `service_url`, which runs on this machine, be a node. Ends on
    SIGTERM and SIGINT, and when the manager refuses it (UserError)."""
    token = await _token(settings, ticket)
    service_token = secrets.token_urlsafe(32)
    async with (
        SandboxClient(service_url) as sandboxes,
        httpx.AsyncClient(
            base_url=settings.control_url,
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
        ) as control,
    ):
        machine = Machine(settings.state)

        async def registration() -> Registration:
            return Registration(
                node=Node(
                    id=settings.node,
                    address=settings.address,
                    capacity=machine.capacity(),
                    drivers=frozenset(settings.drivers),
                    snapshots=await asyncio.to_thread(_templates, settings.templates),
                ),
                service_token=service_token,
            )

        agent = NodeAgent(control, registration, sandboxes, machine, settings.times)
        entrance = create_entrance(sandboxes.connection, service_token)
        server = uvicorn.Server(_server_config(entrance, settings.host, settings.port))
        beating = asyncio.create_task(agent.run(), name="beats")
        serving = asyncio.create_task(server.serve(), name="entrance")
        # A node whose beats ended must not go on: others will be given its sandboxes.
        done, _ = await asyncio.wait({beating, serving}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        beating.cancel()
        await serving
        for task in done:
            task.result()


async def _token(settings: NodeSettings, ticket: str | None) -> str:
    """This node's token, kept for its owner only; a ticket is exchanged for one once."""
    path = settings.state / "node.token"
    if path.exists():
        return path.read_text(encoding="utf-8")
    token = await join(settings.control_url, ticket or "", settings.node)
    await asyncio.to_thread(_keep_secret, path, token)
    return token


def _keep_secret(path: Path, token: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(token)


def _templates(directory: Path) -> frozenset[str]:
    return frozenset(path.name for path in directory.glob("t-*"))


def _server_config(app: object, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        # Longer than clients keep idle connections: none finds one closed in its hands.
        timeout_keep_alive=3600,
        timeout_graceful_shutdown=5,
    )
