"""Routes that reach into a guest: commands and files."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from journeyman.sandbox.node import files
from journeyman.sandbox.node.commands import Command, run_command
from journeyman.sandbox.service.living import LivingSandbox
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.sandbox.wire.api import API, ExecRequest, FileEntry, PathRequest, RenameRequest
from journeyman.types.failure import SandboxError
from journeyman.types.sandbox import ExecResult

_ONE = f"{API}/sandboxes/{{sandbox_id}}"
_DISCONNECT_CHECK_S = 0.5
_TREE_TIMEOUT_S = 120.0

Answer = TypeVar("Answer")


def add(app: FastAPI, manager: SandboxManager) -> None:
    _add_exec(app, manager)
    _add_contents(app, manager)
    _add_names(app, manager)


async def until_disconnect(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Cancel the work when its client has gone: nobody waits for that command any more."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=_DISCONNECT_CHECK_S))[0]:
            if await request.is_disconnected():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                raise SandboxError("the client went away during the call")
        return task.result()
    finally:
        task.cancel()


async def _exec(sandbox: LivingSandbox, request: ExecRequest) -> ExecResult:
    given = {os.fsdecode(name): os.fsdecode(value) for name, value in request.env}
    command = Command(
        argv=[os.fsdecode(argument) for argument in request.argv],
        cwd=os.fsdecode(request.cwd),
        env={**sandbox.record.env, **given},
        stdin=request.stdin,
        timeout_s=request.timeout_s,
        kept_bytes=request.kept_bytes,
    )
    async with sandbox.guest() as link:
        return await run_command(link, command)


def _add_exec(app: FastAPI, manager: SandboxManager) -> None:
    @app.post(f"{_ONE}/exec")
    async def exec_command(sandbox_id: str, body: ExecRequest, request: Request) -> ExecResult:
        return await until_disconnect(request, _exec(manager.get(sandbox_id), body))


def _query(request: Request) -> dict[str, str]:
    """Query parameters; paths may hold bytes that are no UTF-8."""
    raw = request.scope["query_string"].decode("ascii")
    return dict(parse_qsl(raw, errors="surrogateescape", keep_blank_values=True))


async def _streamed(pieces: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """Errors before the first piece become a status; later ones break the stream off."""
    first = await anext(pieces, b"")

    async def everything() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return StreamingResponse(everything(), media_type="application/octet-stream")


async def _contents(
    sandbox: LivingSandbox, path: str, max_bytes: int
) -> AsyncGenerator[bytes, None]:
    async with sandbox.guest() as link:
        async for piece in files.read_file(link, path, max_bytes):
            yield piece


async def _tree(sandbox: LivingSandbox, root: str) -> AsyncGenerator[bytes, None]:
    async with sandbox.guest() as link:
        async for piece in files.tree_records(link, root, _TREE_TIMEOUT_S):
            yield piece


def _add_contents(app: FastAPI, manager: SandboxManager) -> None:
    @app.get(f"{_ONE}/file")
    async def read(sandbox_id: str, request: Request) -> StreamingResponse:
        query = _query(request)
        limit = int(query.get("max_bytes", 1 << 62))
        return await _streamed(_contents(manager.get(sandbox_id), query["path"], limit))

    @app.put(f"{_ONE}/file")
    async def write(sandbox_id: str, request: Request) -> None:
        query = _query(request)
        mode = int(query.get("mode", "644"), 8)
        async with manager.get(sandbox_id).guest() as link:
            await files.write_file(link, query["path"], request.stream(), mode)

    @app.get(f"{_ONE}/tree")
    async def tree(sandbox_id: str, request: Request) -> StreamingResponse:
        return await _streamed(_tree(manager.get(sandbox_id), _query(request)["root"]))


def _wire_entry(entry: files.Entry) -> FileEntry:
    return FileEntry(
        name=entry.name,
        kind=entry.kind,
        mode=entry.mode,
        size=entry.size,
        mtime_ns=entry.mtime_ns,
        target=entry.target,
    )


def _add_names(app: FastAPI, manager: SandboxManager) -> None:
    @app.post(f"{_ONE}/stat")
    async def stat(sandbox_id: str, body: PathRequest) -> FileEntry:
        async with manager.get(sandbox_id).guest() as link:
            return _wire_entry(await files.stat_file(link, os.fsdecode(body.path)))

    @app.post(f"{_ONE}/list")
    async def list_directory(sandbox_id: str, body: PathRequest) -> list[FileEntry]:
        async with manager.get(sandbox_id).guest() as link:
            entries = await files.list_directory(link, os.fsdecode(body.path))
        return [_wire_entry(entry) for entry in entries]

    @app.post(f"{_ONE}/make_directory")
    async def make_directory(sandbox_id: str, body: PathRequest) -> None:
        async with manager.get(sandbox_id).guest() as link:
            await files.make_directory(link, os.fsdecode(body.path))

    @app.post(f"{_ONE}/remove")
    async def remove(sandbox_id: str, body: PathRequest) -> None:
        async with manager.get(sandbox_id).guest() as link:
            await files.remove(link, os.fsdecode(body.path))

    @app.post(f"{_ONE}/rename")
    async def rename(sandbox_id: str, body: RenameRequest) -> None:
        async with manager.get(sandbox_id).guest() as link:
            await files.rename(link, os.fsdecode(body.source), os.fsdecode(body.target))
