"""Let only bearers of the token in, mounted applications included."""

import hmac

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from journeyman.agent.wire import ErrorBody

_OPEN_PATHS = {"/health"}


class BearerGate:
    """ASGI middleware. Compares in constant time and says nothing about what it guards."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in _OPEN_PATHS or self._admits(scope):
            await self._app(scope, receive, send)
            return
        error = ErrorBody(type="Unauthorized", cause="no or wrong bearer token")
        response = JSONResponse({"error": error.model_dump()}, status_code=401)
        await response(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)
