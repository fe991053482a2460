"""The HTTP face of a sandbox manager."""

import asyncio
import hmac
import tempfile
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.node.images import Images
from journeyman.sandbox.service import guest_routes
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.sandbox.service.templates import Templates
from journeyman.sandbox.wire.api import (
    API,
    CreateRequest,
    ErrorBody,
    Health,
    ImageInfo,
    SandboxInfo,
    TemplateInfo,
)
from journeyman.sandbox.wire.errors import describe
from journeyman.types.failure import JourneymanError


def create_app(
    manager: SandboxManager, templates: Templates, images: Images, token: str
) -> FastAPI:
    """The ASGI application. Every request carries `Authorization: Bearer TOKEN`."""

    app = FastAPI(title="Journeyman sandbox service")
    app.add_middleware(TokenCheck, token=token)
    _add_errors(app)
    _add_sandboxes(app, manager)
    guest_routes.add(app, manager)
    _add_images(app, images)

    @app.post(f"{API}/templates")
    async def build_template(spec: TemplateSpec) -> TemplateInfo:
        return TemplateInfo(id=await templates.build(spec))

    return app


class TokenCheck:
    """Plain ASGI: a middleware that wraps requests would hide that a client has gone."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and not hmac.compare_digest(given, self._expected):
            body = ErrorBody(
                type="UserError",
                cause="the sandbox service refuses this token",
                cure="Read it from the file beside the service's socket.",
            )
            await _error_response(401, body)(scope, receive, send)
            return
        await self._app(scope, receive, send)


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


def _add_images(app: FastAPI, images: Images) -> None:
    @app.post(f"{API}/images")
    async def import_image(request: Request) -> ImageInfo:
        """The body is a tar of the image; it is on disk before anything of it is read."""
        with tempfile.NamedTemporaryFile(prefix="journeyman-image-") as file:
            async for piece in request.stream():
                await asyncio.to_thread(file.write, piece)
            file.flush()
            return ImageInfo(id=await images.add(Path(file.name)))


def _add_sandboxes(app: FastAPI, manager: SandboxManager) -> None:
    @app.get(f"{API}/health")
    async def health() -> Health:
        return manager.health()

    @app.post(f"{API}/sandboxes")
    async def create(body: CreateRequest, request: Request) -> SandboxInfo:
        work = manager.create(body.template, body.files, body.lease_s, body.stands_still)
        return (await guest_routes.until_disconnect(request, work)).info()

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
    async def fork(sandbox_id: str, request: Request) -> SandboxInfo:
        work = manager.fork(manager.get(sandbox_id))
        return (await guest_routes.until_disconnect(request, work)).info()

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
