"""The client of the agent server, for people's terminals and for the controller alike."""

import json
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import httpx

from journeyman.agent.events import Event
from journeyman.agent.wire import Command, CommandOutput, ErrorBody, SessionInfo, SessionRequest
from journeyman.types import Episode, InfraError, JourneymanError, UserError
from journeyman.types import failure as failures

_POLL_S = 30.0
_IDLE_CONNECTION_S = 30.0
"""Shorter than `serving.KEEP_ALIVE_S`."""
_PATIENCE_S = 300.0
"""Opening a session forks a sandbox, which a busy machine may take long for."""


class AgentServerError(InfraError):
    """The agent server cannot be reached, or answered with what is no answer."""


class AgentClient:
    """`async with AgentClient("http://127.0.0.1:8100") as client`.

    `transport` replaces the network, for a server in the same process. Errors of the server are
    raised here as the types they had there.
    """

    def __init__(
        self,
        url: str = "http://agent",
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        token: str | None = None,
    ) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._url = url
        self._http = httpx.AsyncClient(
            base_url=url,
            transport=transport,
            headers=headers,
            timeout=httpx.Timeout(_PATIENCE_S, connect=10.0),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_CONNECTION_S),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; sessions stay open."""
        await self._http.aclose()

    async def open(self, request: SessionRequest) -> SessionInfo:
        """Open a session with its sandbox."""
        response = await self._ask("POST", "/v1/sessions", content=request.model_dump_json())
        return SessionInfo.model_validate_json(response.content)

    async def upload(self, session: str, archive: bytes) -> None:
        """Lay a tar archive over the session's working directory."""
        await self._ask("PUT", f"/v1/sessions/{session}/workspace", content=archive)

    async def send(self, session: str, content: str) -> SessionInfo:
        """Say something; the turn loop starts, or the message waits for the running one."""
        body = json.dumps({"content": content})
        response = await self._ask("POST", f"/v1/sessions/{session}/messages", content=body)
        return SessionInfo.model_validate_json(response.content)

    async def info(self, session: str) -> SessionInfo:
        """How the session stands."""
        response = await self._ask("GET", f"/v1/sessions/{session}")
        return SessionInfo.model_validate_json(response.content)

    async def list(self) -> list[SessionInfo]:
        """All open sessions."""
        response = await self._ask("GET", "/v1/sessions")
        return [SessionInfo.model_validate(item) for item in response.json()]

    async def episode(self, session: str, *, wait_s: float = 0.0) -> Episode | None:
        """The record once the turn loop has ended; None when it has not within `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            wait = min(max(deadline - time.monotonic(), 0.0), _POLL_S)
            response = await self._ask(
                "GET", f"/v1/sessions/{session}/episode", params={"wait": wait}
            )
            if response.status_code == httpx.codes.OK:
                return Episode.model_validate_json(response.content)
            if time.monotonic() >= deadline:
                return None

    async def events(self, session: str, after: int = 0) -> AsyncIterator[Event]:
        """Events after that number; a lost connection is taken up where it broke.

        Ends when the session is closed. Not over `httpx.ASGITransport`, which holds a response
        back until it is complete.
        """
        lost = 0
        while True:
            try:
                async for event in self._stream(session, after):
                    after, lost = event.number, 0
                    yield event
                return
            except httpx.TransportError as error:
                lost += 1
                if lost > 3:
                    raise AgentServerError(f"{self._url} is gone: {error}") from error

    async def run_command(self, session: str, command: str, timeout_s: float | None = None) -> str:
        """Run a command in the session's sandbox, unknown to the model. Gives what it said."""
        body = Command(command=command, timeout_s=timeout_s).model_dump_json()
        response = await self._ask("POST", f"/v1/sessions/{session}/commands", content=body)
        return CommandOutput.model_validate_json(response.content).text

    async def patch(self, session: str) -> bytes:
        """What the agent changed, as a unified diff."""
        return (await self._ask("GET", f"/v1/sessions/{session}/patch")).content

    async def cancel(self, session: str) -> SessionInfo:
        """End the running turn loop, its tools included."""
        response = await self._ask("POST", f"/v1/sessions/{session}/cancel")
        return SessionInfo.model_validate_json(response.content)

    async def close_session(self, session: str) -> None:
        """Close a session and its sandbox."""
        await self._ask("DELETE", f"/v1/sessions/{session}")

    async def _stream(self, session: str, after: int) -> AsyncIterator[Event]:
        path = f"/v1/sessions/{session}/events"
        headers = {"last-event-id": str(after)}
        timeout = httpx.Timeout(60.0, connect=10.0)  # the server says something every 15 s
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.is_error:
                await response.aread()
                raise _error_of(response)
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    yield Event.model_validate_json(line[5:])

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        content: str | bytes | None = None,
        params: dict[str, float] | None = None,
    ) -> httpx.Response:
        headers = {"content-type": "application/json"} if isinstance(content, str) else {}
        try:
            response = await self._http.request(
                method, path, content=content, params=params, headers=headers
            )
        except httpx.TransportError as error:
            raise AgentServerError(
                f"no answer from the agent server at {self._url}: {error!r}",
                "start it with `journeyman serve`",
            ) from error
        if response.is_error:
            raise _error_of(response)
        return response


def _error_of(response: httpx.Response) -> JourneymanError:
    """The error as it was raised in the server, as far as its type is shared."""
    try:
        body = ErrorBody.model_validate(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return AgentServerError(f"HTTP {response.status_code}: {response.text[:500]}")
    known = getattr(failures, body.type, None)
    if isinstance(known, type) and issubclass(known, JourneymanError):
        return known(body.cause, body.cure)
    if response.is_client_error:
        return UserError(body.cause, body.cure)
    return JourneymanError(f"{body.type}: {body.cause}", body.cure)
