"""Who may call a server of the fleet. Plain ASGI: a middleware that wraps requests would hide that
a client has gone."""

import asyncio
from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from journeyman.sandbox.fleet.tokens import Bearer
from journeyman.sandbox.wire.api import ErrorBody
from journeyman.sandbox.wire.errors import describe
from journeyman.types.failure import JourneymanError


class Guard:
    """Finds out who sends a request, and refuses those nobody knows.

    `who` is asked in a thread for the bearer of a token. A request with an `Origin` comes from a
    web page, which has no business here even if it got hold of a token.
    """

    def __init__(
        self, app: ASGIApp, who: Callable[[str], Bearer | None], open_paths: tuple[str, ...] = ()
    ) -> None:
        self._app = app
        self._who = who
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope.get("headers", ()))
        if b"origin" in headers:
            await _refusal(403, "requests from web pages are refused")(scope, receive, send)
            return
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        bearer = await asyncio.to_thread(self._who, token) if scheme == "Bearer" else None
        if bearer is None and scope["path"] not in self._open_paths:
            await _refusal(401, "this token is not known here")(scope, receive, send)
            return
        scope.setdefault("state", {})["bearer"] = bearer
        await self._app(scope, receive, send)


def _refusal(status: int, cause: str) -> Response:
    return error_response(status, ErrorBody(type="UserError", cause=cause))


def error_response(status: int, body: ErrorBody) -> Response:
    return Response(body.model_dump_json(), status, media_type="application/json")


def add_errors(app: FastAPI) -> None:
    """Errors travel by type, as the sandbox service's do."""

    @app.exception_handler(JourneymanError)
    @app.exception_handler(OSError)
    async def known(_: Request, error: Exception) -> Response:
        return error_response(*describe(error))

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: Exception) -> Response:
        return error_response(400, ErrorBody(type="UserError", cause=f"bad request: {error}"))
