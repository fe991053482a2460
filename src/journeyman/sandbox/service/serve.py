"""Running the service: socket, token, driver, shutdown."""

import asyncio
import contextlib
import os
import resource
import secrets
import socket as sockets
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from journeyman.config.home import home_dir
from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.images import Images
from journeyman.sandbox.node.probe import choose_driver
from journeyman.sandbox.node.rootfs import install_agent, require_rootfs
from journeyman.sandbox.service.app import create_app
from journeyman.sandbox.service.e2b.app import E2bApp
from journeyman.sandbox.service.e2b.base import BASE
from journeyman.sandbox.service.e2b.control import ControlApi
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.sandbox.service.templates import Templates, sweep_abandoned
from journeyman.sandbox.service.tenants import TENANTS_FILE, Tenants
from journeyman.sandbox.wire.token import token_path
from journeyman.types.failure import UserError

_SHUTDOWN_S = 5


async def serve(
    socket: Path,
    state: Path,
    driver: str = "auto",
    lifeline: bool = False,
    listen: tuple[str, int] | None = None,
) -> None:
    """Serve on a unix socket until SIGTERM or SIGINT. Raises UserError when it cannot start.

    With `listen`, a host and a port, tenants reach the E2B-compatible face there.

    With `lifeline`, also until stdin ends: a service started by a program ends with it, however
    that program ends. (PR_SET_PDEATHSIG would end it with the *thread* that started it.)
    """
    _allow_many_descriptors()
    chosen = await choose_driver(driver)
    rootfs = require_rootfs()
    agent = install_agent(rootfs, build_agent())
    sweep_abandoned(home_dir() / "templates")
    images = Images(home_dir() / "images")
    templates = Templates(home_dir() / "templates", images, chosen, rootfs, agent)
    manager = SandboxManager(state, chosen, templates)
    token = secrets.token_urlsafe(32)
    app: ASGIApp = create_app(manager, templates, images, token)
    if listen:
        app = ByListener(app, _network_face(manager, templates, state))
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        # Longer than clients keep idle connections: none finds one closed in its hands.
        timeout_keep_alive=3600,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = uvicorn.Server(config)
    await manager.start()
    watcher = asyncio.create_task(_watch_stdin(server)) if lifeline else None
    try:
        with _listening(socket, token) as listener, _network(listen) as others:
            await server.serve(sockets=[listener, *others])
    finally:
        if watcher:
            watcher.cancel()
        await manager.stop()


class ByListener:
    """One server for both: who comes by the unix socket has no port."""

    def __init__(self, local: ASGIApp, network: ASGIApp) -> None:
        self._local = local
        self._network = network

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        by_network = server is not None and server[1] is not None
        await (self._network if by_network else self._local)(scope, receive, send)


def _network_face(manager: SandboxManager, templates: Templates, state: Path) -> ASGIApp:
    tenants = Tenants(state / TENANTS_FILE)
    control = ControlApi(
        manager,
        templates,
        tenant=lambda request: tenants.find(request.headers.get("x-api-key", "")),
        base=lambda: templates.build(BASE),
    )
    return E2bApp(manager, control)


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`. Raises UserError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{text!r} is no address", "Give HOST:PORT, for instance 127.0.0.1:3000.")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def _network(address: tuple[str, int] | None) -> Iterator[list[sockets.socket]]:
    if address is None:
        yield []
        return
    try:
        listener = sockets.create_server(address, backlog=512)
    except OSError as error:
        raise UserError(
            f"cannot listen on {address[0]}:{address[1]}: {error.strerror}",
            "Choose another address with --listen.",
        ) from None
    with listener:
        yield [listener]


def _allow_many_descriptors() -> None:
    """A sandbox holds four descriptors here, a call one more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def _listening(path: Path, token: str) -> Iterator[sockets.socket]:
    """A unix socket and its token file, both for this user only, both removed at the end."""
    if len(os.fsencode(path)) > 100:
        raise UserError(f"the socket path {path} is too long", "Choose one below 100 bytes.")
    secret = token_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    secret.unlink(missing_ok=True)
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)
        secret.unlink(missing_ok=True)


async def _watch_stdin(server: uvicorn.Server) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1 << 10):
        pass
    server.should_exit = True
