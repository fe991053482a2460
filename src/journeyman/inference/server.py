"""The model over HTTP: OpenAI's chat completions, and the project's own completion contract."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

from journeyman.inference.chat_service import ChatService
from journeyman.inference.openai import ChatRequest, response
from journeyman.inference.openai_stream import stream
from journeyman.types import Completion, CompletionRequest, JourneymanError, UserError

DEFAULT_TOKENS = 1024
"""Most tokens of a reply for which OpenAI's request names no limit."""


def app(service: ChatService) -> FastAPI:
    """The application around one chat service.

    `POST /v1/completions/chat` takes a `CompletionRequest` and gives a `Completion`;
    `POST /v1/chat/completions` is OpenAI's; `DELETE /v1/conversations/{name}` forgets a stream;
    `GET /health` is 200 while the engine serves, 503 with the reason when it does not.
    """
    web = FastAPI(title="Journeyman inference")
    web.add_exception_handler(JourneymanError, _known_error)
    web.add_exception_handler(RequestValidationError, _invalid)

    @web.post("/v1/completions/chat")
    async def complete(request: CompletionRequest) -> Completion:
        return await service.complete(request)

    @web.post("/v1/chat/completions")
    async def chat(asked: ChatRequest) -> Any:
        known = service.messages(asked.conversation) if asked.conversation else ()
        request = asked.as_request(known, DEFAULT_TOKENS)
        if asked.stream:
            return await _streamed(service, request, asked)
        try:
            completion = await service.complete(request)
        finally:
            if asked.conversation is None:
                service.release(request.conversation)
        return response(completion, asked, service.token_texts(completion.token_ids))

    @web.delete("/v1/conversations/{name}", status_code=204)
    async def release(name: str) -> None:
        service.release(name)

    @web.get("/health")
    async def health() -> JSONResponse:
        problem = service.problem
        version = service.version.model_dump()
        body = {"serving": problem is None, "problem": problem, "version": version}
        return JSONResponse(body | {"stats": service.stats()}, 503 if problem else 200)

    return web


async def _streamed(
    service: ChatService, request: CompletionRequest, asked: ChatRequest
) -> StreamingResponse:
    """Waits for the first event, so that a refusal has its status."""
    events = stream(service, request, asked)
    first = await anext(events)

    async def body() -> AsyncIterator[str]:
        try:
            yield first
            async for event in events:
                yield event
        finally:
            await events.aclose()
            if asked.conversation is None:
                service.release(request.conversation)

    return StreamingResponse(body(), media_type="text/event-stream")


async def _known_error(_: Request, error: Exception) -> JSONResponse:
    status = 400 if isinstance(error, UserError) else 503
    return _error(status, str(error), type(error).__name__)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return _error(400, f"{place}: {first['msg']}", "invalid_request_error")


def _error(status: int, message: str, kind: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind}}, status)
