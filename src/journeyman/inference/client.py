"""A model on another machine, or in another process."""

from types import TracebackType
from typing import Self

import httpx

from journeyman.types import Completion, CompletionRequest, EngineError, UserError


class HttpSampler:
    """A `types.Sampler` over an inference server's URL. Use as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        # Requests wait in the engine's queue, not for a free connection. Idle ones are closed
        # before the server does it (uvicorn after 5 s): else a request may meet a closing one.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0
        )
        self._client = httpx.AsyncClient(
            base_url=url, timeout=timeout_s, limits=limits, transport=transport
        )

    async def complete(self, request: CompletionRequest) -> Completion:
        """See `types.Sampler`. Raises UserError when the server refuses the request."""
        answer = await self._send("POST", "/v1/completions/chat", request.model_dump_json())
        return Completion.model_validate_json(answer.content)

    async def release(self, conversation: str) -> None:
        """Forget the conversation's token stream on the server."""
        await self._send("DELETE", f"/v1/conversations/{conversation}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def _send(self, method: str, path: str, body: str | None = None) -> httpx.Response:
        headers = {"content-type": "application/json"}
        try:
            answer = await self._client.request(method, path, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise EngineError(
                f"the model at {self._url} cannot be reached: {error!r}",
                "check that the inference server runs there",
            ) from error
        if answer.is_success:
            return answer
        said = f"the model at {self._url} answered {answer.status_code}: {answer.text[:2000]}"
        raise UserError(said) if answer.status_code < 500 else EngineError(said)
