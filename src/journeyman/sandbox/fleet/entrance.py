"""Where a fleet's manager reaches the sandbox service of a node over the network."""

import hmac

from fastapi import FastAPI, Request, Response

from journeyman.sandbox.client.connection import Connection
from journeyman.sandbox.fleet.forward import forward
from journeyman.sandbox.fleet.guard import Guard, add_errors
from journeyman.sandbox.fleet.tokens import Bearer
from journeyman.sandbox.wire.api import API

_METHODS = ["GET", "PUT", "POST", "DELETE"]


def create_entrance(service: Connection, token: str) -> FastAPI:
    """Passes on what carries the token that this node gave to its manager, and nothing else. The
    service itself stays on its unix socket."""

    def who(given: str) -> Bearer | None:
        known = hmac.compare_digest(given.encode(), token.encode())
        return Bearer("node", "manager") if known else None

    app = FastAPI(title="Journeyman sandbox node")
    app.add_middleware(Guard, who=who)
    add_errors(app)

    @app.api_route(f"{API}/{{path:path}}", methods=_METHODS)
    async def inside(path: str, request: Request) -> Response:
        return await forward(request, service, f"{API}/{path}")

    return app
