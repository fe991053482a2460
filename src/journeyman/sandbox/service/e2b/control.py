"""The control API: making, finding, pausing, forking and ending sandboxes."""

import math
import secrets
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from journeyman.sandbox.service.living import SNAPSHOT_PREFIX, LivingSandbox
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.sandbox.service.record import Claim, Term
from journeyman.sandbox.service.templates import Templates
from journeyman.types.failure import JourneymanError, SandboxGone, UserError

ENVD_VERSION = "0.6.1"
"""The newest daemon whose promises are kept: no metadata on files, which 0.6.2 added."""
_DEFAULT_S = 300
_MOST_S = 24 * 3600
_MOST_FORKS = 100
_MOST_LISTED = 1000
_USER = "user"
Tenant = Callable[[Request], str | None]
Handler = Callable[[Request, str], Awaitable[Response]]


def refuse(status: int, message: str) -> Response:
    return JSONResponse({"code": status, "message": message}, status)


class ControlApi:
    """`tenant` tells whose key a request carries; `base` is the template behind `base`."""

    def __init__(
        self,
        manager: SandboxManager,
        templates: Templates,
        tenant: Tenant,
        base: Callable[[], Awaitable[str]],
    ) -> None:
        self._manager = manager
        self._templates = templates
        self._tenant = tenant
        self._base = base
        self._made: dict[tuple[str, str], str] = {}
        """(tenant, idempotency key) → sandbox id."""

    def routes(self) -> list[Route]:
        one = "/sandboxes/{sandbox_id}"
        table: list[tuple[str, str, Handler]] = [
            ("POST", "/sandboxes", self.create),
            ("GET", "/sandboxes", self.list_all),
            ("GET", one, self.get_one),
            ("DELETE", one, self.kill),
            ("POST", f"{one}/connect", self.connect),
            ("POST", f"{one}/resume", self.connect),
            ("POST", f"{one}/timeout", self.set_timeout),
            ("POST", f"{one}/refreshes", self.refresh),
            ("POST", f"{one}/pause", self.pause),
            ("POST", f"{one}/fork", self.fork),
            ("POST", f"{one}/snapshots", self.snapshot),
            ("GET", f"{one}/metrics", self.metrics),
            ("GET", "/snapshots", self.snapshots),
            ("DELETE", "/templates/{template_id:path}", self.remove_template),
        ]
        return [
            Route(prefix + path, self._guarded(handler), methods=[method])
            for method, path, handler in table
            for prefix in ("", "/v2")
        ]

    def _guarded(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            tenant = self._tenant(request)
            if tenant is None:
                return refuse(401, "the API key is not known here")
            try:
                return await handler(request, tenant)
            except SandboxGone:
                return refuse(404, f"sandbox {request.path_params.get('sandbox_id')} not found")
            except UserError as error:
                return refuse(400, error.cause)
            except JourneymanError as error:
                return refuse(503, error.cause)
            except KeyError as error:
                return refuse(400, f"bad request: {error} is missing")
            except (TypeError, ValueError, AttributeError) as error:
                return refuse(400, f"bad request: {error}")

        return answer

    # ---- one sandbox

    async def create(self, request: Request, tenant: str) -> Response:
        body = await request.json()
        key = (tenant, request.headers.get("idempotency-key", ""))
        if key[1] and key in self._made:
            return JSONResponse(_short(self._manager.get(self._made[key], tenant)), 201)
        template = await self._template(str(body["templateID"]), tenant)
        if template is None:
            return refuse(404, f"template '{body['templateID']}' not found")
        if body.get("volumeMounts") or body.get("mcp"):
            return refuse(400, "volumes and MCP gateways are not offered here")
        wakes = bool((body.get("autoResume") or {}).get("enabled"))
        sandbox = await self._manager.create(
            template,
            {},
            _MOST_S,
            env={str(name): str(value) for name, value in (body.get("envVars") or {}).items()},
            term=_term(body.get("timeout"), bool(body.get("autoPause"))),
            claim=Claim(
                tenant=tenant,
                metadata=body.get("metadata") or {},
                access_token=secrets.token_hex(24),
                wakes_on_use=wakes,
                user=_USER,
            ),
        )
        if key[1]:
            self._made[key] = sandbox.record.id
        return JSONResponse(_short(sandbox), 201)

    async def _template(self, name: str, tenant: str) -> str | None:
        """By alias or id. Another tenant's is unknown."""
        alias = name.partition(":")[0]
        if alias == "base":
            return await self._base()
        for kept in self._templates.kept(tenant):
            if name == kept.id or alias in kept.names or name in kept.names:
                return kept.id
        return None

    async def get_one(self, request: Request, tenant: str) -> Response:
        return JSONResponse(_detail(self._sandbox(request, tenant)))

    def _sandbox(self, request: Request, tenant: str) -> LivingSandbox:
        return self._manager.get(request.path_params["sandbox_id"], tenant)

    async def kill(self, request: Request, tenant: str) -> Response:
        self._manager.close(self._sandbox(request, tenant).record.id)
        return Response(status_code=204)

    async def connect(self, request: Request, tenant: str) -> Response:
        """Wakes it where it sleeps; its time is only made longer."""
        body = await _optional_json(request)
        sandbox = self._sandbox(request, tenant)
        slept = sandbox.record.state == "hibernated"
        term = _term(body.get("timeout"), sandbox.record.term.at_end == "hibernate")
        if slept or term.ends_at > sandbox.record.term.ends_at:
            sandbox.change(term=term)
        await sandbox.resume()
        return JSONResponse(_short(sandbox), 201 if slept else 200)

    async def set_timeout(self, request: Request, tenant: str) -> Response:
        body = await request.json()
        sandbox = self._sandbox(request, tenant)
        at_end = sandbox.record.term.at_end
        sandbox.change(term=_term(body["timeout"], at_end == "hibernate"))
        return Response(status_code=204)

    async def refresh(self, request: Request, tenant: str) -> Response:
        body = await _optional_json(request)
        sandbox = self._sandbox(request, tenant)
        ends_at = time.time() + float(body.get("duration", 15))
        if ends_at > sandbox.record.term.ends_at:
            sandbox.change(term=sandbox.record.term.model_copy(update={"ends_at": ends_at}))
        return Response(status_code=204)

    async def pause(self, request: Request, tenant: str) -> Response:
        body = await _optional_json(request)
        sandbox = self._sandbox(request, tenant)
        if not body.get("memory", True):
            return refuse(400, "pausing without memory is not offered here")
        if sandbox.record.state == "hibernated":
            return refuse(409, f"sandbox {sandbox.record.id} is paused already")
        await sandbox.hibernate()
        return Response(status_code=204)

    async def fork(self, request: Request, tenant: str) -> Response:
        """The parent keeps running. Each fork is told of by itself: it is there, or why not."""
        body = await _optional_json(request)
        count = int(body.get("count", 1))
        if not 1 <= count <= _MOST_FORKS:
            return refuse(400, f"between 1 and {_MOST_FORKS} forks, not {count}")
        parent = self._sandbox(request, tenant)
        results: list[dict[str, Any]] = []
        for _ in range(count):
            term = _term(body.get("timeout"), parent.record.term.at_end == "hibernate")
            claim = parent.record.claim.model_copy(update={"access_token": secrets.token_hex(24)})
            try:
                child = await self._manager.fork(parent, term, claim)
                results.append({"sandbox": _short(child)})
            except JourneymanError as error:
                results.append({"error": {"code": 503, "message": error.cause}})
        return JSONResponse(results, 201)

    async def snapshot(self, request: Request, tenant: str) -> Response:
        body = await _optional_json(request)
        names = (str(body["name"]),) if body.get("name") else ()
        sandbox = self._sandbox(request, tenant)
        made = await self._manager.keep_snapshot(sandbox, names)
        return JSONResponse({"snapshotID": made, "names": list(names)}, 201)

    async def metrics(self, request: Request, tenant: str) -> Response:
        self._sandbox(request, tenant)
        return JSONResponse([])

    # ---- many

    async def list_all(self, request: Request, tenant: str) -> Response:
        query = request.query_params
        found = self._manager.list(tenant)
        if states := query.get("state"):
            found = [one for one in found if _state(one) in states.split(",")]
        wanted = {
            unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))
        }
        found = [one for one in found if wanted.items() <= one.record.claim.metadata.items()]
        newest_first = query.get("order", "desc") != "asc"
        found.sort(key=lambda one: (one.record.created_at, one.record.id), reverse=newest_first)
        ids = [one.record.id for one in found]
        page, headers = _page(query.get("limit"), query.get("nextToken"), ids)
        return JSONResponse([_detail(one) for one in found[page]], headers=headers)

    async def snapshots(self, request: Request, tenant: str) -> Response:
        query = request.query_params
        kept = self._templates.kept(tenant)
        page, headers = _page(query.get("limit"), query.get("nextToken"), [one.id for one in kept])
        listed = [{"snapshotID": one.id, "names": list(one.names)} for one in kept[page]]
        return JSONResponse(listed, headers=headers)

    async def remove_template(self, request: Request, tenant: str) -> Response:
        template = request.path_params["template_id"]
        if not template.startswith(SNAPSHOT_PREFIX) or not self._templates.remove(template, tenant):
            return refuse(404, f"template '{template}' not found")
        return Response(status_code=204)


def _page(limit: str | None, token: str | None, ids: list[str]) -> tuple[slice, dict[str, str]]:
    """A slice of the sorted ids, and the header that names the last of it while more follow."""
    begin = ids.index(token) + 1 if token in ids else 0
    most = min(max(1, int(limit or 100)), _MOST_LISTED)
    page = slice(begin, begin + most)
    more = len(ids) > begin + most
    return page, {"X-Next-Token": ids[begin + most - 1]} if more else {}


def _term(timeout: object, pauses: bool) -> Term:
    """Raises ValueError for what is no number of seconds up to a day."""
    seconds = float(timeout) if isinstance(timeout, int | float) else _DEFAULT_S
    if not math.isfinite(seconds) or not 0 <= seconds <= _MOST_S:
        raise ValueError(f"a timeout between 0 and {_MOST_S} seconds, not {timeout}")
    return Term(ends_at=time.time() + seconds, at_end="hibernate" if pauses else "close")


async def _optional_json(request: Request) -> dict[str, Any]:
    body = await request.body()
    return dict(await request.json()) if body else {}


def _state(sandbox: LivingSandbox) -> str:
    return "paused" if sandbox.record.state == "hibernated" else "running"


def _short(sandbox: LivingSandbox) -> dict[str, Any]:
    record = sandbox.record
    return {
        "templateID": record.template,
        "sandboxID": record.id,
        "clientID": "journeyman",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": record.claim.access_token,
        "domain": None,
    }


def _detail(sandbox: LivingSandbox) -> dict[str, Any]:
    record = sandbox.record
    pauses = record.term.at_end == "hibernate"
    short = _short(sandbox)
    return {
        **{name: short[name] for name in ("templateID", "sandboxID", "clientID", "envdVersion")},
        "startedAt": _time(record.created_at),
        "endAt": _time(record.term.ends_at or record.created_at + record.lease_s),
        "cpuCount": max(1, round(record.limits.cpus)),
        "memoryMB": record.limits.memory_bytes >> 20,
        "diskSizeMB": record.limits.memory_bytes >> 20,
        "state": _state(sandbox),
        "metadata": record.claim.metadata,
        "lifecycle": {
            "onTimeout": "pause" if pauses else "kill",
            "autoResume": record.claim.wakes_on_use,
        },
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
