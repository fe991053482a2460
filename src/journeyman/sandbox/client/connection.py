"""HTTP to the sandbox service, with its errors turned back into ours."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

import httpx
from pydantic import BaseModel, ValidationError

from journeyman.sandbox.wire.api import ErrorBody
from journeyman.sandbox.wire.errors import rebuild
from journeyman.sandbox.wire.token import token_path
from journeyman.types.failure import SandboxError, UserError

Content = bytes | AsyncIterator[bytes]
TOKEN_VARIABLE = "JOURNEYMAN_SANDBOX_TOKEN"
_PIECE_BYTES = 1 << 18
_MANY = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0)


class Connection:
    """One pool of connections to one service."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        socket = None
        base = url
        if url.startswith("unix://"):
            socket = Path(url.removeprefix("unix://"))
            base = "http://sandboxes"
        elif not url.startswith(("http://", "https://")):
            raise UserError(f"{url!r} is no sandbox service URL", "Use unix:///PATH or http://….")
        self._http = httpx.AsyncClient(
            base_url=base,
            transport=httpx.AsyncHTTPTransport(
                uds=str(socket) if socket else None, limits=_MANY, retries=0
            ),
            headers={"Authorization": f"Bearer {token or _find_token(url, socket)}"},
            timeout=httpx.Timeout(None, connect=10.0),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, method: str, path: str, body: BaseModel | None = None) -> bytes:
        """One request with a JSON body; the answer's body. Raises what the service raised."""
        content = body.model_dump_json() if body is not None else None
        headers = {"Content-Type": "application/json"} if content is not None else {}
        try:
            answer = await self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        _raise_error(answer.status_code, answer.content)
        return answer.content

    async def send(self, path: str, file: IO[bytes]) -> bytes:
        """POST a file's content; the answer's body."""

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                yield piece

        try:
            answer = await self._http.post(path, content=pieces())
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        _raise_error(answer.status_code, answer.content)
        return answer.content

    async def upload(self, path: str, query: Mapping[str, Any], data: bytes) -> None:
        try:
            answer = await self._http.put(_with_query(path, query), content=_pieces(data))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        _raise_error(answer.status_code, answer.content)

    @asynccontextmanager
    async def download(
        self, path: str, query: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        try:
            async with self._http.stream("GET", _with_query(path, query)) as answer:
                if answer.is_error:
                    _raise_error(answer.status_code, await answer.aread())
                yield answer.aiter_bytes()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], content: Content
    ) -> AsyncIterator[httpx.Response]:
        """One request as it is, for somebody who passes on requests of others; the answer is
        not judged, and its body not read yet."""
        try:
            async with self._http.stream(
                method, path, headers=dict(headers), content=content
            ) as answer:
                yield answer
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> SandboxError:
        return SandboxError(
            f"the sandbox service at {self.url} does not answer: {error!r}",
            "Start it with `journeyman sandboxd`, or look at its log.",
        )


def _find_token(url: str, socket: Path | None) -> str:
    if socket is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        return token_path(socket).read_text(encoding="utf-8")
    except OSError as error:
        raise SandboxError(
            f"no sandbox service at {url}: {error}", "Start it with `journeyman sandboxd`."
        ) from None


def _with_query(path: str, query: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(dict(query), errors='surrogateescape')}"


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    view = memoryview(data)
    for at in range(0, len(data), _PIECE_BYTES):
        yield bytes(view[at : at + _PIECE_BYTES])


def _raise_error(status: int, content: bytes) -> None:
    if status < 400:
        return
    try:
        body = ErrorBody.model_validate_json(content)
    except ValidationError:
        text = content[:2000].decode("utf-8", "replace")
        raise SandboxError(f"the sandbox service answered {status}: {text}") from None
    raise rebuild(body)
