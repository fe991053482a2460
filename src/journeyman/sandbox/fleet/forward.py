"""Passing requests on to a node, streaming both ways."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import httpx
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from journeyman.sandbox.client.connection import Connection, Content
from journeyman.types.failure import SandboxError, UserError

_DISCONNECT_CHECK_S = 0.5
_MOST_BODY_BYTES = 64 << 20
_PASSED_ON = ("content-type", "accept")
_PASSED_BACK = ("content-type",)


async def forward(request: Request, connection: Connection, path: str) -> Response:
    """Send the request to another service, as `path` there, and answer what that answers.

    When the client goes away, the request to the node is broken off, which ends what it had begun
    there. Raises SandboxError when the node does not answer.
    """
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    query = request.scope["query_string"].decode("ascii")
    target = f"{path}?{query}" if query else path
    streams = request.method == "PUT"
    content: Content = request.stream() if streams else await _body(request)
    stack = AsyncExitStack()
    begun = asyncio.create_task(
        stack.enter_async_context(connection.exchange(request.method, target, headers, content))
    )
    try:
        # While a body streams in, reading it notices a client that has gone.
        if not streams:
            await _until_begun(request, begun)
        answer = await begun
    except BaseException:
        begun.cancel()
        with suppress(BaseException):
            await begun
        await stack.aclose()
        raise
    back = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
    return StreamingResponse(_pieces(stack, answer), answer.status_code, headers=back)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BODY_BYTES:
            raise UserError(
                f"a request of more than {_MOST_BODY_BYTES >> 20} MiB",
                "Write large contents as files; they are streamed.",
            )
    return bytes(body)


async def _until_begun(request: Request, begun: asyncio.Task[httpx.Response]) -> None:
    while not (await asyncio.wait({begun}, timeout=_DISCONNECT_CHECK_S))[0]:
        if await request.is_disconnected():
            raise SandboxError("the client went away during the call")


async def _pieces(stack: AsyncExitStack, answer: httpx.Response) -> AsyncIterator[bytes]:
    async with stack:
        async for piece in answer.aiter_raw():
            yield piece
