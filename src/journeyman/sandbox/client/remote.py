"""One sandbox, over HTTP."""

import errno
import os
from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from journeyman.sandbox.client.connection import Connection
from journeyman.sandbox.wire.api import (
    API,
    ExecRequest,
    FileEntry,
    PathRequest,
    RenameRequest,
    SandboxInfo,
)
from journeyman.types.failure import SandboxError, UserError
from journeyman.types.sandbox import ExecResult

_ENTRIES = TypeAdapter(list[FileEntry])
DEFAULT_KEPT_BYTES = 256 << 10
_MOST_RECORD_BYTES = 256 << 20


class RemoteSandbox:
    """Implements `journeyman.types.Sandbox`. File errors are OSErrors with the guest's errno."""

    def __init__(self, connection: Connection, info: SandboxInfo) -> None:
        self._connection = connection
        self.info = info
        self._path = f"{API}/sandboxes/{info.id}"

    @property
    def id(self) -> str:
        return self.info.id

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
        kept_bytes: int = DEFAULT_KEPT_BYTES,
    ) -> ExecResult:
        """Run one command to its end; on time-out its whole process tree is killed.

        A program that does not exist ends with 127, one that cannot run or a bad `cwd` with 126.
        Of each stream at most `kept_bytes` are kept, half from each end, with a line in between
        that says how many were dropped. Cancelling the call kills the command.
        """
        if isinstance(argv, str) or not argv:
            raise UserError(f"argv must be a list of arguments, not {argv!r}")
        pairs = (env or {}).items()
        request = ExecRequest(
            argv=tuple(os.fsencode(argument) for argument in argv),
            cwd=os.fsencode(cwd),
            env=tuple((os.fsencode(name), os.fsencode(value)) for name, value in pairs),
            stdin=stdin,
            timeout_s=timeout_s,
            kept_bytes=kept_bytes,
        )
        answer = await self._connection.call("POST", f"{self._path}/exec", request)
        return ExecResult.model_validate_json(answer)

    async def read_file(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        query = {"path": path, "max_bytes": max_bytes}
        try:
            async with self._connection.download(f"{self._path}/file", query) as pieces:
                return b"".join([piece async for piece in pieces])
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise UserError(
                    f"{path!r} in sandbox {self.id} is larger than {max_bytes} bytes",
                    "Read a part of it with a command, or raise max_bytes.",
                ) from None
            raise

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        query = {"path": path, "mode": f"{mode:o}"}
        await self._connection.upload(f"{self._path}/file", query, data)

    async def stat(self, path: str) -> FileEntry:
        """Of the link itself where `path` is a symbolic link."""
        return FileEntry.model_validate_json(await self._name("stat", path))

    async def list(self, path: str) -> list[FileEntry]:
        """Every entry of a directory, sorted by name."""
        return _ENTRIES.validate_json(await self._name("list", path))

    async def make_directory(self, path: str) -> None:
        """With its parents; one that exists is fine."""
        await self._name("make_directory", path)

    async def remove(self, path: str) -> None:
        """With everything below it; links are removed, never followed."""
        await self._name("remove", path)

    async def rename(self, source: str, target: str) -> None:
        request = RenameRequest(source=os.fsencode(source), target=os.fsencode(target))
        await self._connection.call("POST", f"{self._path}/rename", request)

    async def tree_records(self, root: str) -> bytes:
        """Raw records of the guest's walk; `client.tree` reads them."""
        async with self._connection.download(f"{self._path}/tree", {"root": root}) as pieces:
            records = bytearray()
            async for piece in pieces:
                records += piece
                if len(records) > _MOST_RECORD_BYTES:
                    raise SandboxError(
                        f"the tree {root!r} in sandbox {self.id} has over "
                        f"{_MOST_RECORD_BYTES >> 20} MiB of file names",
                        "Walk a smaller directory.",
                    )
            return bytes(records)

    async def fork(self) -> "RemoteSandbox":
        answer = await self._connection.call("POST", f"{self._path}/fork")
        return RemoteSandbox(self._connection, SandboxInfo.model_validate_json(answer))

    async def hibernate(self) -> None:
        await self._connection.call("POST", f"{self._path}/hibernate")

    async def resume(self) -> None:
        await self._connection.call("POST", f"{self._path}/resume")

    async def close(self) -> None:
        await self._connection.call("DELETE", self._path)

    async def _name(self, what: str, path: str) -> bytes:
        request = PathRequest(path=os.fsencode(path))
        return await self._connection.call("POST", f"{self._path}/{what}", request)
