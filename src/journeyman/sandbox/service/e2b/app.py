"""The application: control API where no sandbox is named, else what is inside that sandbox."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from journeyman.sandbox.service.e2b import files_http, filesystem_rpc, process_rpc
from journeyman.sandbox.service.e2b.connect_rpc import (
    ConnectError,
    Message,
    error_response,
    server_stream,
    unary,
)
from journeyman.sandbox.service.e2b.control import ControlApi, refuse
from journeyman.sandbox.service.e2b.place import ENVD_PORT, find, may_enter, named_user, place_of
from journeyman.sandbox.service.living import LivingSandbox
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.types.failure import SandboxError, SandboxGone

Unary = Callable[[LivingSandbox, Message, Request], Awaitable[Message]]
Stream = Callable[[LivingSandbox, Message, Request], AsyncGenerator[Message, None]]

_UNARY: dict[str, Unary] = {
    "process.Process/List": lambda s, m, r: process_rpc.list_processes(s, m),
    "process.Process/SendInput": lambda s, m, r: process_rpc.send_input(s, m),
    "process.Process/CloseStdin": lambda s, m, r: process_rpc.close_stdin(s, m),
    "process.Process/SendSignal": lambda s, m, r: process_rpc.send_signal(s, m),
    "process.Process/Update": lambda s, m, r: process_rpc.update(s, m),
    "filesystem.Filesystem/Stat": lambda s, m, r: filesystem_rpc.stat_path(s, m, named_user(r, s)),
    "filesystem.Filesystem/MakeDir": lambda s, m, r: filesystem_rpc.make_dir(
        s, m, named_user(r, s)
    ),
    "filesystem.Filesystem/Move": lambda s, m, r: filesystem_rpc.move(s, m, named_user(r, s)),
    "filesystem.Filesystem/ListDir": lambda s, m, r: filesystem_rpc.list_dir(
        s, m, named_user(r, s)
    ),
    "filesystem.Filesystem/Remove": lambda s, m, r: filesystem_rpc.remove(s, m, named_user(r, s)),
}
_STREAMS: dict[str, Stream] = {
    "process.Process/Start": lambda s, m, r: process_rpc.start(
        s, m, named_user(r, s), _keepalive_s(r)
    ),
    "process.Process/Connect": lambda s, m, r: process_rpc.connect(s, m, _keepalive_s(r)),
}


def _keepalive_s(request: Request) -> float:
    asked = request.headers.get("keepalive-ping-interval", "")
    return min(max(1.0, float(asked)), 300.0) if asked.isdecimal() else 50.0


class E2bApp:
    """An ASGI application. Two ways to a sandbox: routing headers, or its name as the host."""

    def __init__(self, manager: SandboxManager, control: ControlApi) -> None:
        self._manager = manager
        self._control = Starlette(routes=control.routes())
        inside = [
            Route("/health", self._health, methods=["GET"]),
            Route("/files", self._download, methods=["GET"]),
            Route("/files", self._upload, methods=["POST", "PUT"]),
            *(
                Route(f"/{name}", self._unary(call), methods=["POST"])
                for name, call in _UNARY.items()
            ),
            *(
                Route(f"/{name}", self._stream(call), methods=["POST"])
                for name, call in _STREAMS.items()
            ),
        ]
        self._inside = Starlette(routes=inside)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._control(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if "origin" in request.headers:
            # A web page has no business here, whatever name it reached us by.
            await refuse(403, "requests from web pages are refused")(scope, receive, send)
            return
        place = place_of(request)
        if place is None:
            await self._control(scope, receive, send)
            return
        try:
            sandbox = find(self._manager, place)
        except SandboxGone:
            message = f"The sandbox {place.sandbox_id} was not found"
            await refuse(502, message)(scope, receive, send)
            return
        if place.port != ENVD_PORT:
            message = f"The sandbox is running but port is not open: {place.port}"
            await refuse(502, message)(scope, receive, send)
            return
        scope["state"] = {"sandbox": sandbox}
        await self._inside(scope, receive, send)

    async def _health(self, request: Request) -> Response:
        return Response(status_code=204)

    async def _download(self, request: Request) -> Response:
        sandbox: LivingSandbox = request.state.sandbox
        if not files_http.is_allowed(sandbox, request, "read"):
            return refuse(401, "the access token or signature is not valid")
        return await self._plain(files_http.download(sandbox, request), sandbox)

    async def _upload(self, request: Request) -> Response:
        sandbox: LivingSandbox = request.state.sandbox
        if not files_http.is_allowed(sandbox, request, "write"):
            return refuse(401, "the access token or signature is not valid")
        return await self._plain(files_http.upload(sandbox, request), sandbox)

    async def _plain(self, work: Awaitable[Response], sandbox: LivingSandbox) -> Response:
        try:
            return await work
        except ConnectError as error:
            return refuse(error_response(error).status_code, error.message)
        except SandboxGone:
            return refuse(502, f"The sandbox {sandbox.record.id} was not found")

    def _unary(self, call: Unary) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            sandbox: LivingSandbox = request.state.sandbox

            async def handle(message: Message) -> Message:
                _check_access(sandbox, request)
                try:
                    return await call(sandbox, message, request)
                except SandboxError as error:
                    raise _unavailable(sandbox, error) from None

            return await unary(request, handle)

        return answer

    def _stream(self, call: Stream) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            sandbox: LivingSandbox = request.state.sandbox

            async def handle(message: Message) -> AsyncGenerator[Message, None]:
                _check_access(sandbox, request)
                try:
                    async for event in call(sandbox, message, request):
                        yield event
                except SandboxError as error:
                    raise _unavailable(sandbox, error) from None

            return await server_stream(request, handle)

        return answer


def _check_access(sandbox: LivingSandbox, request: Request) -> None:
    if not may_enter(sandbox, request):
        raise ConnectError("unauthenticated", "the access token is not valid")


def _unavailable(sandbox: LivingSandbox, error: SandboxError) -> ConnectError:
    if isinstance(error, SandboxGone):
        return ConnectError("unavailable", f"The sandbox {sandbox.record.id} was not found")
    return ConnectError("unavailable", str(error))
