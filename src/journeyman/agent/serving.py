"""Serve an application on a port of this machine for the length of a block."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from fastapi import FastAPI

KEEP_ALIVE_S = 120
"""Longer than any client keeps an idle connection: else a request may meet a closing one."""
GRACE_S = 2
"""Streams of events that are still followed are cut after so long."""


class _EmbeddedServer(uvicorn.Server):
    """Leaves signals to the program around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(
    application: FastAPI, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Yields the URL; connections made before the server is up wait for it. At the end every
    session is closed.

    Port 0 takes a free one. Raises OSError when the port is taken.
    """
    listener = socket.create_server((host, port), backlog=2048)
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _EmbeddedServer(config)
    running = asyncio.create_task(server.serve(sockets=[listener]), name="agent server")
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.shield(running)
        listener.close()
