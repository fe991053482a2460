"""Where sandboxes come from, over HTTP."""

import asyncio
import tarfile
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

from pydantic import TypeAdapter

from journeyman.sandbox.client.connection import Connection
from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.wire.api import (
    API,
    CreateRequest,
    Health,
    ImageInfo,
    SandboxInfo,
    TemplateInfo,
)
from journeyman.types.failure import UserError
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

    async def import_image(self, source: Path) -> str:
        """Import an OCI layout or what `docker save` writes, as a directory or a tar; returns an
        id for `TemplateSpec.base`. Raises UserError for what is no image or was changed."""
        archive = await asyncio.to_thread(_archive, source)
        with archive:
            answer = await self._connection.send(f"{API}/images", archive)
        return ImageInfo.model_validate_json(answer).id

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


def _archive(source: Path) -> IO[bytes]:
    """The tar of an image, open for reading; a directory's is made and has no name."""
    try:
        if not source.is_dir():
            return open(source, "rb")
        archive: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(source, arcname=".")
    except OSError as error:
        raise UserError(f"cannot read the image {source}: {error.strerror}") from None
    archive.seek(0)
    return archive
