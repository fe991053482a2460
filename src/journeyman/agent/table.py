"""All open sessions of one server."""

import io
import posixpath
import tarfile
import uuid

from journeyman.agent.session import Services, Session
from journeyman.agent.wire import SessionRequest
from journeyman.types import (
    Environment,
    JourneymanError,
    Sandbox,
    SandboxError,
    Sandboxes,
    UserError,
)

MAX_SESSIONS = 1024
MAX_UPLOAD_BYTES = 256 << 20
_UPLOAD = "/tmp/.journeyman-upload.tar"


class UnknownSession(UserError):
    """No session of that id, or not this client's: the two look alike on purpose."""


class SessionTable:
    """Opens, finds and closes sessions."""

    def __init__(
        self, services: Services, sandboxes: Sandboxes, default: Environment | None = None
    ) -> None:
        self.services = services
        self.sandboxes = sandboxes
        self._default = default
        self._sessions: dict[str, Session] = {}

    async def open(self, request: SessionRequest) -> Session:
        """Fork a sandbox for a new session. Raises SandboxError; nothing is left behind then."""
        environment = request.environment or self._default
        if environment is None:
            raise UserError("the session names no environment", "this server has no default one")
        if len(self._sessions) >= MAX_SESSIONS:
            raise UserError(f"{MAX_SESSIONS} sessions are open", "close one first")
        sandbox = await self.sandboxes.create(environment, lease_s=request.lease_s)
        session = Session(uuid.uuid4().hex, request, environment, sandbox, self.services)
        self._sessions[session.id] = session
        return session

    def get(self, session_id: str) -> Session:
        """Raises UnknownSession."""
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession("no such session", "list the sessions, or open one")
        return session

    def all(self) -> tuple[Session, ...]:
        """Open sessions, oldest first."""
        return tuple(self._sessions.values())

    async def close(self, session: Session) -> None:
        """Close and forget one session."""
        try:
            await session.close()
        finally:
            self._sessions.pop(session.id, None)
            self.services.log.forget(session.id)

    async def close_all(self) -> None:
        """Close every session; the first error is raised after all were tried."""
        errors: list[JourneymanError] = []
        for session in self.all():
            try:
                await self.close(session)
            except JourneymanError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def upload(self, session: Session, archive: bytes) -> None:
        """Lay a tar archive over the working directory, before the first message."""
        if session.info().stop is not None or session.running:
            raise UserError("the session has begun", "send the repository before the first message")
        check_archive(archive)
        await unpack(session.sandbox, archive, session.environment.workdir)
        session.upload = archive


def check_archive(archive: bytes) -> None:
    """Raises UserError for what is no tar archive or has members outside its root."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
            names = tar.getnames()
    except tarfile.TarError as error:
        raise UserError(f"the upload is no tar archive: {error}", "send a tar file") from None
    for name in names:
        if posixpath.isabs(name) or ".." in name.split("/"):
            raise UserError(f"the archive has a member outside its root: {name!r}", "pack it again")


async def unpack(sandbox: Sandbox, archive: bytes, workdir: str) -> None:
    """Unpack inside the sandbox, where a hostile archive can do no harm."""
    await sandbox.write_file(_UPLOAD, archive)
    script = 'mkdir -p -- "$2" && tar -xf "$1" --no-same-owner -C "$2"; s=$?; rm -f "$1"; exit $s'
    result = await sandbox.exec(["sh", "-c", script, "sh", _UPLOAD, workdir], timeout_s=120.0)
    if result.exit_code != 0:
        raise SandboxError(f"the upload could not be unpacked: {result.text.strip()[:500]}")
