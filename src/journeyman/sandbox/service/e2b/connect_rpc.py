"""The Connect protocol with JSON: unary calls and streams from the server.

https://connectrpc.com/docs/protocol. A stream's messages are envelopes: one byte of flags, four of
length, big-endian, then JSON; the last one (flag 2) holds the error, if there is one.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

_STATUS = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "resource_exhausted": 429,
    "internal": 500,
    "unimplemented": 501,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
_LAST = 2
_MOST_REQUEST_BYTES = 16 << 20
STREAM_TYPE = "application/connect+json"
Message = dict[str, Any]


class ConnectError(Exception):
    """A call that failed, with one of the protocol's codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def body(self) -> Message:
        return {"code": self.code, "message": self.message}


async def read_message(request: Request) -> Message:
    """The one message of a request, enveloped or not. Raises ConnectError."""
    body = await request.body()
    if request.headers.get("content-type", "").startswith(STREAM_TYPE):
        if len(body) < 5 or int.from_bytes(body[1:5], "big") != len(body) - 5 or body[0] & 1:
            raise ConnectError("invalid_argument", "the request is no single plain envelope")
        body = body[5:]
    if len(body) > _MOST_REQUEST_BYTES:
        raise ConnectError("resource_exhausted", "the request is too large")
    try:
        message = json.loads(body or b"{}")
    except ValueError as error:
        raise ConnectError("invalid_argument", f"the request is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise ConnectError("invalid_argument", "the request is no JSON object")
    return message


def envelope(message: Message, flags: int = 0) -> bytes:
    data = json.dumps(message).encode()
    return bytes([flags]) + len(data).to_bytes(4, "big") + data


def error_response(error: ConnectError) -> Response:
    return JSONResponse(error.body(), _STATUS.get(error.code, 500))


async def unary(request: Request, handle: Callable[[Message], Awaitable[Message]]) -> Response:
    """Answer one message with one."""
    try:
        return JSONResponse(await handle(await read_message(request)))
    except ConnectError as error:
        return error_response(error)


async def server_stream(
    request: Request, handle: Callable[[Message], AsyncGenerator[Message, None]]
) -> Response:
    """Answer one message with many. The first is waited for, so that what fails before it does
    not look like a stream that began."""
    try:
        messages = handle(await read_message(request))
        first = await anext(messages, None)
    except ConnectError as error:
        last = envelope({"error": error.body()}, _LAST)
        return Response(last, media_type=STREAM_TYPE)
    return StreamingResponse(_enveloped(first, messages), media_type=STREAM_TYPE)


async def _enveloped(
    first: Message | None, messages: AsyncGenerator[Message, None]
) -> AsyncIterator[bytes]:
    end: Message = {}
    try:
        if first is not None:
            yield envelope(first)
        async for message in messages:
            yield envelope(message)
    except ConnectError as error:
        end = {"error": error.body()}
    finally:
        await messages.aclose()
    yield envelope(end, _LAST)
