"""The agent server: the same HTTP application for people and for training."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import ValidationError

from journeyman.agent.bearer import BearerGate
from journeyman.agent.counting import EstimatedCounter, ExactCounter
from journeyman.agent.events import EventLog, MemoryEventLog
from journeyman.agent.patch import session_patch
from journeyman.agent.serving import serving
from journeyman.agent.session import OnEpisode, Services, Session
from journeyman.agent.table import MAX_UPLOAD_BYTES, SessionTable, UnknownSession
from journeyman.agent.wire import (
    Command,
    CommandOutput,
    ErrorBody,
    SessionInfo,
    SessionRequest,
    UserMessage,
)
from journeyman.chat import ChatFormat
from journeyman.types import Environment, InfraError, JourneymanError, Sampler, Sandboxes, UserError

__all__ = ["app", "serving"]

MAX_WAIT_S = 600.0


def app(
    sampler: Sampler,
    sandboxes: Sandboxes,
    on_episode: OnEpisode | None = None,
    *,
    chat: ChatFormat | None = None,
    environment: Environment | None = None,
    log: EventLog | None = None,
    token: str | None = None,
    command_s: float = 60.0,
    idle_s: float | None = None,
) -> FastAPI:
    """The application.

    `on_episode` is awaited with the record whenever a turn loop ends. `chat` makes token budgets
    exact (without it they are estimated). `environment` serves sessions that name none. With a
    `token` every request must bear it. `idle_s` hibernates sandboxes of idle sessions.
    """
    services = Services(
        sampler=sampler,
        log=log or MemoryEventLog(),
        counter=ExactCounter(chat) if chat else EstimatedCounter(),
        on_episode=on_episode,
        command_s=command_s,
        idle_s=idle_s,
    )
    table = SessionTable(services, sandboxes, environment)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await table.close_all()

    application = FastAPI(
        title="Journeyman agent server", lifespan=lifespan, max_body_size=MAX_UPLOAD_BYTES + 1024
    )
    application.state.sessions = table
    _answer_errors(application)
    if token is not None:
        application.add_middleware(BearerGate, token=token)
    _session_routes(application, table)
    _work_routes(application, table)
    return application


def _session_routes(application: FastAPI, table: SessionTable) -> None:
    @application.get("/health")
    async def health() -> dict[str, int]:
        return {"sessions": len(table.all())}

    @application.get("/v1/sessions")
    async def list_sessions() -> list[SessionInfo]:
        return [session.info() for session in table.all()]

    @application.post("/v1/sessions", status_code=201)
    async def open_session(request: Request) -> SessionInfo:
        # Bytes travel as base64 in JSON; only the JSON mode of validation decodes them.
        body = SessionRequest.model_validate_json(await request.body())
        return (await table.open(body)).info()

    def find(session_id: str) -> Session:
        return table.get(session_id)

    @application.get("/v1/sessions/{session_id}")
    async def show_session(session: Annotated[Session, Depends(find)]) -> SessionInfo:
        return session.info()

    @application.delete("/v1/sessions/{session_id}", status_code=204)
    async def close_session(session: Annotated[Session, Depends(find)]) -> None:
        await table.close(session)

    @application.post("/v1/sessions/{session_id}/cancel")
    async def cancel(session: Annotated[Session, Depends(find)]) -> SessionInfo:
        await session.cancel()
        return session.info()


def _work_routes(application: FastAPI, table: SessionTable) -> None:
    async def find(session_id: str) -> Session:
        return table.get(session_id)

    @application.post("/v1/sessions/{session_id}/messages", status_code=202)
    async def send(message: UserMessage, session: Annotated[Session, Depends(find)]) -> SessionInfo:
        session.send(message.content)
        return session.info()

    @application.get("/v1/sessions/{session_id}/events", response_class=EventSourceResponse)
    async def events(
        session: Annotated[Session, Depends(find)],
        last_event_id: Annotated[int, Header(ge=0)] = 0,
        after: Annotated[int, Query(ge=0)] = 0,
    ) -> AsyncIterator[ServerSentEvent]:
        async for event in session.follow(max(after, last_event_id)):
            yield ServerSentEvent(
                id=str(event.number), event=event.type, data=event.model_dump(mode="json")
            )

    @application.get("/v1/sessions/{session_id}/episode")
    async def episode(
        session: Annotated[Session, Depends(find)],
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0.0,
    ) -> Response:
        record = await session.episode(wait)
        if record is None:
            return JSONResponse(session.info().model_dump(mode="json"), status_code=202)
        return Response(record.model_dump_json(), media_type="application/json")

    @application.put("/v1/sessions/{session_id}/workspace", status_code=204)
    async def upload(request: Request, session: Annotated[Session, Depends(find)]) -> None:
        await table.upload(session, await _bounded_body(request))

    @application.post("/v1/sessions/{session_id}/commands")
    async def command(
        command: Command, session: Annotated[Session, Depends(find)]
    ) -> CommandOutput:
        return CommandOutput(text=await session.run_command(command))

    @application.get("/v1/sessions/{session_id}/patch")
    async def patch(session: Annotated[Session, Depends(find)]) -> Response:
        text = await session_patch(table.sandboxes, session)
        return Response(text, media_type="text/x-diff; charset=utf-8")


async def _bounded_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_UPLOAD_BYTES:
            raise UserError(
                f"the upload is larger than {MAX_UPLOAD_BYTES >> 20} MB",
                "leave build outputs out of it",
            )
    return bytes(body)


def _answer_errors(application: FastAPI) -> None:
    """Every error is an ErrorBody. An exception of our own code shows its type and nothing else."""

    def body(status: int, type_: str, cause: str, cure: str = "") -> JSONResponse:
        content = {"error": ErrorBody(type=type_, cause=cause, cure=cure).model_dump()}
        return JSONResponse(content, status_code=status)

    async def journeyman_error(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, JourneymanError)
        if isinstance(error, UnknownSession):
            return body(404, "UnknownSession", error.cause, error.cure)
        status = 400 if isinstance(error, UserError) else 503
        if not isinstance(error, UserError | InfraError):
            status = 500
        return body(status, type(error).__name__, error.cause, error.cure)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ValidationError | RequestValidationError)
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return body(422, "UserError", f"{where}: {first['msg']}", "correct the request")

    async def bug(_: Request, error: Exception) -> JSONResponse:
        return body(500, type(error).__name__, "a bug in the agent server", "see its log")

    application.add_exception_handler(JourneymanError, journeyman_error)
    application.add_exception_handler(ValidationError, invalid)
    application.add_exception_handler(RequestValidationError, invalid)
    application.add_exception_handler(Exception, bug)
