"""Where sandboxes come from, over HTTP."""

from types import TracebackType

from pydantic import TypeAdapter

from journeyman.sandbox.client.connection import Connection
from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.wire.api import API, CreateRequest, Health, SandboxInfo, TemplateInfo
from journeyman.types.sandbox import Environment

_INFOS = TypeAdapter(list[SandboxInfo])


class SandboxClient:
    """Implements `journeyman.types.Sandboxes`, and builds templates.

    `url` is `unix:///path.sock` (the token is read from the file beside the socket) or an
    http(s) URL (the token is `token` or `$JOURNEYMAN_SANDBOX_TOKEN`).
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._connection = Connection(url, token)

    async def __aenter__(self) -> "SandboxClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Sandboxes live on until closed or their lease runs out."""
        await self._connection.close()

    @property
    def connection(self) -> Connection:
        """For requests that this class knows nothing of."""
        return self._connection

    async def health(self) -> Health:
        return Health.model_validate_json(await self._connection.call("GET", f"{API}/health"))

    async def build_template(self, spec: TemplateSpec) -> str:
        """Build a template unless it exists; returns its id. Raises UserError when a layer
        fails, naming the layer and what it printed."""
        answer = await self._connection.call("POST", f"{API}/templates", spec)
        return TemplateInfo.model_validate_json(answer).id

    async def create(self, environment: Environment, *, lease_s: float = 600.0) -> RemoteSandbox:
        """Fork the template's snapshot and write the environment's files into it."""
        request = CreateRequest(
            template=environment.template,
            files=environment.files,
            lease_s=lease_s,
            stands_still=environment.stands_still,
        )
        answer = await self._connection.call("POST", f"{API}/sandboxes", request)
        return RemoteSandbox(self._connection, SandboxInfo.model_validate_json(answer))

    async def connect(self, sandbox_id: str) -> RemoteSandbox:
        """The living sandbox of that id. Raises SandboxGone."""
        answer = await self._connection.call("GET", f"{API}/sandboxes/{sandbox_id}")
        return RemoteSandbox(self._connection, SandboxInfo.model_validate_json(answer))

    async def list(self) -> list[SandboxInfo]:
        """Running and hibernated sandboxes of this service."""
        return _INFOS.validate_json(await self._connection.call("GET", f"{API}/sandboxes"))
