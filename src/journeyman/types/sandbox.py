"""The contract of an isolated machine, as agents, verifiers and task builders see it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from journeyman.types.value import Value


class ExecResult(Value):
    """How a command ended. Output is bounded: the middle is cut and `dropped_bytes` counted."""

    exit_code: int | None
    """None when the command was ended by `signal` or by the time-out."""
    signal: int | None = None
    timed_out: bool = False
    stdout: bytes = b""
    stderr: bytes = b""
    dropped_bytes: int = 0
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """stdout then stderr, decoded with replacement."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class Sandbox(Protocol):
    """One isolated machine. All paths are guest paths; nothing here touches the host's files."""

    @property
    def id(self) -> str: ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> ExecResult:
        """Run one command to its end; on time-out its whole process tree is killed."""
        ...

    async def read_file(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """Raises FileNotFoundError, IsADirectoryError, PermissionError, or UserError if larger."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write atomically (old file intact on failure), creating parent directories."""
        ...

    async def fork(self) -> "Sandbox":
        """A second machine that continues from this one's present state; this one runs on."""
        ...

    async def hibernate(self) -> None:
        """Put the whole state, memory included, on disk and free the processes."""
        ...

    async def resume(self) -> None:
        """Continue a hibernated sandbox. Calls on a hibernated sandbox resume it by themselves."""
        ...

    async def close(self) -> None:
        """End it and remove all its state. Idempotent."""
        ...


class Environment(Value):
    """What a sandbox starts from: a template (already built) plus a few files laid over it."""

    template: str
    """Template id, as `Sandboxes.build_template` returned it."""
    files: Mapping[str, bytes] = {}
    """Absolute guest path → content, written right after the fork."""
    workdir: str = "/app"
    stands_still: bool = False
    """Nothing in the sandbox runs between calls, background processes included, where the driver
    can do that: a hundred episodes then wait for a model without taking its cores."""


class Sandboxes(Protocol):
    """Where sandboxes come from."""

    async def create(self, environment: Environment, *, lease_s: float = 600.0) -> Sandbox:
        """Fork the template's snapshot. The lease is renewed by use; when it runs out the
        sandbox is removed. Raises SandboxError; nothing is left behind by a failed create."""
        ...

    async def connect(self, sandbox_id: str) -> Sandbox:
        """The living sandbox of that id. Raises SandboxGone."""
        ...
