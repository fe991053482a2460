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

from journeyman.config.home import home_dir
from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.images import Images
from journeyman.sandbox.node.probe import choose_driver
from journeyman.sandbox.node.rootfs import install_agent, require_rootfs
from journeyman.sandbox.service.app import create_app
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.sandbox.service.templates import Templates, sweep_abandoned
from journeyman.sandbox.wire.token import token_path
from journeyman.types.failure import UserError

_SHUTDOWN_S = 5


async def serve(socket: Path, state: Path, driver: str = "auto", lifeline: bool = False) -> None:
    """Serve on a unix socket until SIGTERM or SIGINT. Raises UserError when it cannot start.

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
    app = create_app(manager, templates, images, token)
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
        with _listening(socket, token) as listener:
            await server.serve(sockets=[listener])
    finally:
        if watcher:
            watcher.cancel()
        await manager.stop()


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
