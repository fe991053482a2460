"""The way between the two nodes of a live migration: a few connections to the target's port.

Each connection begins with one line of JSON that says what it is for, and is answered by one line;
what follows is that thing's own bytes. Whoever knows the token may fill the one machine that the
port was opened for, and nothing else. The bytes hold a tenant's memory: give both ends a TLS
context (`ssl=` of `asyncio.start_server` and `open_connection`) where the network is not yours.
"""

import asyncio
import hmac
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import Field

from journeyman.sandbox.node.qemu_arrival import Arrival
from journeyman.sandbox.node.relay import Streams, join
from journeyman.types.failure import SandboxError
from journeyman.types.value import Value

_CHUNK_BYTES = 256 << 10
_ANSWER_S = 300.0

What = Literal["overlay", "start", "disk", "memory", "loaded"]
Connect = Callable[[], Awaitable[Streams]]


class Request(Value):
    """The first line of a connection."""

    token: str
    what: What
    name: str = ""
    """Of the overlay whose bytes follow."""
    size: int = Field(default=0, ge=0)


class Answer(Value):
    error: str = ""


class RemoteTarget:
    """A `Target` of `qemu_migrate.depart` at the other end of connections that `connect` opens."""

    def __init__(self, connect: Connect, token: str) -> None:
        self._connect = connect
        self._token = token

    async def copy_overlay(self, name: str, source: Path) -> None:
        with _open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            async with self._asked("overlay", name, size) as (reader, writer):
                await asyncio.wait_for(_send(file, writer), _ANSWER_S)
                await _heard(reader)

    async def start(self) -> None:
        async with self._asked("start") as (reader, _):
            await _heard(reader)

    async def loaded(self) -> None:
        async with self._asked("loaded") as (reader, _):
            await _heard(reader)

    async def connect_disk(self) -> Streams:
        return await self._stream("disk")

    async def connect_memory(self) -> Streams:
        return await self._stream("memory")

    async def _stream(self, what: What) -> Streams:
        reader, writer = await self._ask(what)
        try:
            await _heard(reader)
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def _ask(self, what: What, name: str = "", size: int = 0) -> Streams:
        try:
            reader, writer = await self._connect()
        except OSError as error:
            raise SandboxError(f"the target of a migration cannot be reached: {error}") from None
        request = Request(token=self._token, what=what, name=name, size=size)
        writer.write(request.model_dump_json().encode() + b"\n")
        return reader, writer

    @asynccontextmanager
    async def _asked(self, what: What, name: str = "", size: int = 0) -> AsyncIterator[Streams]:
        reader, writer = await self._ask(what, name, size)
        try:
            yield reader, writer
        except OSError as error:
            raise SandboxError(f"the target of a migration broke off: {error}") from None
        finally:
            writer.close()


async def _heard(reader: asyncio.StreamReader) -> None:
    """Raises SandboxError with the target's words, or when it says nothing."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            answer = Answer.model_validate_json(await reader.readline())
    except (OSError, ValueError) as error:
        raise SandboxError(f"the target of a migration broke off: {error!r}") from None
    if answer.error:
        raise SandboxError(f"the target of a migration failed: {answer.error}")


class Gate:
    """The target's end: the handler of one arrival's connections, for `asyncio.start_server`."""

    def __init__(self, arrival: Arrival, token: str) -> None:
        self._arrival = arrival
        self._token = token

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Never raises for what the other end does."""
        try:
            request = Request.model_validate_json(await reader.readline())
            if not hmac.compare_digest(request.token.encode(), self._token.encode()):
                raise SandboxError("this token is not the migration's")
            await self._do(request, reader, writer)
        except (OSError, ValueError, SandboxError) as error:
            cause = error.cause if isinstance(error, SandboxError) else str(error)
            with suppress(OSError):
                _tell(writer, cause or repr(error))
                await writer.drain()
        finally:
            writer.close()

    async def _do(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.what == "overlay":
            await _receive(reader, self._arrival.place_of(request.name), request.size)
        elif request.what == "start":
            await self._arrival.start()
        elif request.what == "loaded":
            await self._arrival.loaded()
        else:
            disk = request.what == "disk"
            connect = self._arrival.connect_disk if disk else self._arrival.connect_memory
            engine_reader, engine = await connect()
            _tell(writer)
            await join((reader, writer), (engine_reader, engine))
            return
        _tell(writer)


def _tell(writer: asyncio.StreamWriter, error: str = "") -> None:
    writer.write(Answer(error=error).model_dump_json().encode() + b"\n")


def _open(path: Path, mode: Literal["rb", "xb"]) -> BinaryIO:
    return open(path, mode)


async def _send(file: BinaryIO, writer: asyncio.StreamWriter) -> None:
    while data := file.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


async def _receive(reader: asyncio.StreamReader, target: Path, size: int) -> None:
    with _open(target, "xb") as file:
        while size:
            data = await reader.read(min(size, _CHUNK_BYTES))
            if not data:
                raise SandboxError(f"{target.name} ended {size} bytes early")
            file.write(data)
            size -= len(data)
