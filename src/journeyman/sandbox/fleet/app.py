"""The HTTP face of a fleet's manager: the sandbox service's own API for tenants, and a few routes
for nodes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException, Request, Response

from journeyman.sandbox.client import TemplateSpec
from journeyman.sandbox.fleet.forward import forward
from journeyman.sandbox.fleet.guard import Guard, add_errors
from journeyman.sandbox.fleet.manager import FleetManager
from journeyman.sandbox.fleet.messages import (
    FLEET_API,
    Beat,
    BeatAnswer,
    Join,
    Joined,
    Registration,
)
from journeyman.sandbox.fleet.tokens import Kind, Tokens
from journeyman.sandbox.wire.api import API, CreateRequest, SandboxInfo, TemplateInfo

log = logging.getLogger(__name__)
_TICK_S = 1.0
_JOIN = f"{FLEET_API}/join"
_ONE = f"{API}/sandboxes/{{sandbox}}"


def create_fleet_app(manager: FleetManager, tokens: Tokens) -> FastAPI:
    """The ASGI application; while it lives, lost nodes are settled."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await manager.start()
        ticking = asyncio.create_task(_tick(manager), name="fleet manager")
        yield
        ticking.cancel()
        await manager.close()

    app = FastAPI(title="Journeyman sandbox fleet", lifespan=lifespan)
    app.add_middleware(Guard, who=tokens.bearer, open_paths=(_JOIN,))
    add_errors(app)
    _add_nodes(app, manager, tokens)
    _add_sandboxes(app, manager)
    _add_states(app, manager)
    return app


async def _tick(manager: FleetManager) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        try:
            await manager.tick()
        except Exception:
            # A fleet without anybody who settles losses would look healthy.
            log.exception("a round of the fleet's manager failed")


def _name(request: Request, kind: Kind) -> str:
    bearer = request.state.bearer
    if bearer is None or bearer.kind != kind:
        raise HTTPException(403, f"this token is not a {kind}'s")
    return str(bearer.name)


def _add_nodes(app: FastAPI, manager: FleetManager, tokens: Tokens) -> None:
    @app.post(_JOIN)
    async def join(body: Join) -> Joined:
        return Joined(token=await asyncio.to_thread(tokens.redeem, body.ticket, body.node))

    @app.post(f"{FLEET_API}/register")
    async def register(body: Registration, request: Request) -> None:
        if _name(request, "node") != body.node.id:
            raise HTTPException(403, "this token is another node's")
        await manager.register(body)

    @app.post(f"{FLEET_API}/beat")
    async def beat(body: Beat, request: Request) -> BeatAnswer:
        return await manager.beat(_name(request, "node"), body)


def _add_sandboxes(app: FastAPI, manager: FleetManager) -> None:
    @app.post(f"{API}/templates")
    async def build_template(spec: TemplateSpec, request: Request) -> TemplateInfo:
        _name(request, "tenant")
        return TemplateInfo(id=await manager.build_template(spec))

    @app.post(f"{API}/sandboxes")
    async def create(body: CreateRequest, request: Request) -> SandboxInfo:
        return await manager.create(body, _name(request, "tenant"))

    @app.get(f"{API}/sandboxes")
    async def list_all(request: Request) -> list[SandboxInfo]:
        return await manager.list(_name(request, "tenant"))

    @app.get(_ONE)
    async def get_one(sandbox: str, request: Request) -> SandboxInfo:
        return await manager.get(sandbox, _name(request, "tenant"))

    @app.delete(_ONE)
    async def close(sandbox: str, request: Request) -> None:
        await manager.close_sandbox(sandbox, _name(request, "tenant"))


def _add_states(app: FastAPI, manager: FleetManager) -> None:
    @app.post(f"{_ONE}/fork")
    async def fork(sandbox: str, request: Request) -> SandboxInfo:
        return await manager.fork(sandbox, _name(request, "tenant"))

    @app.post(f"{_ONE}/hibernate")
    async def hibernate(sandbox: str, request: Request) -> SandboxInfo:
        tenant = _name(request, "tenant")
        await manager.hibernate(sandbox, tenant)
        return await manager.get(sandbox, tenant)

    @app.post(f"{_ONE}/resume")
    async def resume(sandbox: str, request: Request) -> SandboxInfo:
        tenant = _name(request, "tenant")
        await manager.resume(sandbox, tenant)
        return await manager.get(sandbox, tenant)

    @app.api_route(f"{_ONE}/{{what}}", methods=["GET", "PUT", "POST"])
    async def inside(sandbox: str, what: str, request: Request) -> Response:
        """Commands and files: the node's business."""
        place = await manager.locate(sandbox, _name(request, "tenant"))
        path = f"{API}/sandboxes/{place.local}/{what}"
        return await forward(request, place.client.connection, path)
