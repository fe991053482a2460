"""The HTTP face of a sandbox manager."""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.service import guest_routes
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.sandbox.service.templates import Templates
from journeyman.sandbox.wire.api import (
    API,
    CreateRequest,
    ErrorBody,
    Health,
    SandboxInfo,
    TemplateInfo,
)
from journeyman.sandbox.wire.errors import describe
from journeyman.types.failure import JourneymanError


def create_app(manager: SandboxManager, templates: Templates, token: str) -> FastAPI:
    """The ASGI application. Every request carries `Authorization: Bearer TOKEN`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await manager.start()
        yield
        await manager.stop()

    app = FastAPI(title="Journeyman sandbox service", lifespan=lifespan)
    _add_access(app, token)
    _add_errors(app)
    _add_sandboxes(app, manager)
    guest_routes.add(app, manager)

    @app.post(f"{API}/templates")
    async def build_template(spec: TemplateSpec) -> TemplateInfo:
        return TemplateInfo(id=await templates.build(spec))

    return app


def _add_access(app: FastAPI, token: str) -> None:
    expected = f"Bearer {token}".encode()

    @app.middleware("http")
    async def check_token(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            body = ErrorBody(
                type="UserError",
                cause="the sandbox service refuses this token",
                cure="Read it from the file beside the service's socket.",
            )
            return _error_response(401, body)
        return await call_next(request)


def _error_response(status: int, body: ErrorBody) -> Response:
    return Response(body.model_dump_json(), status, media_type="application/json")


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(JourneymanError)
    @app.exception_handler(OSError)
    async def known(_: Request, error: Exception) -> Response:
        return _error_response(*describe(error))

    @app.exception_handler(ValueError)
    async def bad_value(_: Request, error: Exception) -> Response:
        return _error_response(400, ErrorBody(type="UserError", cause=str(error)))

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: Exception) -> Response:
        return _error_response(400, ErrorBody(type="UserError", cause=f"bad request: {error}"))


def _add_sandboxes(app: FastAPI, manager: SandboxManager) -> None:
    @app.get(f"{API}/health")
    async def health() -> Health:
        return manager.health()

    @app.post(f"{API}/sandboxes")
    async def create(request: CreateRequest) -> SandboxInfo:
        sandbox = await manager.create(request.template, request.files, request.lease_s)
        return sandbox.info()

    @app.get(f"{API}/sandboxes")
    async def list_all() -> list[SandboxInfo]:
        return [sandbox.info() for sandbox in manager.list()]

    @app.get(f"{API}/sandboxes/{{sandbox_id}}")
    async def get_one(sandbox_id: str) -> SandboxInfo:
        return manager.get(sandbox_id).info()

    @app.delete(f"{API}/sandboxes/{{sandbox_id}}")
    async def close(sandbox_id: str) -> None:
        manager.close(sandbox_id)

    @app.post(f"{API}/sandboxes/{{sandbox_id}}/fork")
    async def fork(sandbox_id: str) -> SandboxInfo:
        return (await manager.fork(manager.get(sandbox_id))).info()

    @app.post(f"{API}/sandboxes/{{sandbox_id}}/hibernate")
    async def hibernate(sandbox_id: str) -> SandboxInfo:
        sandbox = manager.get(sandbox_id)
        await sandbox.hibernate()
        return sandbox.info()

    @app.post(f"{API}/sandboxes/{{sandbox_id}}/resume")
    async def resume(sandbox_id: str) -> SandboxInfo:
        sandbox = manager.get(sandbox_id)
        await sandbox.resume()
        return sandbox.info()
