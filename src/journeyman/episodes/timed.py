"""Sampler and sandboxes that tell a stage timer when they are at work."""

from collections.abc import Mapping, Sequence

from journeyman.agent.session import release
from journeyman.observe import StageTimer
from journeyman.types import (
    Completion,
    CompletionRequest,
    Environment,
    ExecResult,
    Sampler,
    Sandbox,
    Sandboxes,
)


class TimedSampler:
    """Counts the wait for a completion as stage `generate`."""

    def __init__(self, sampler: Sampler, timer: StageTimer) -> None:
        self._sampler = sampler
        self._timer = timer

    async def complete(self, request: CompletionRequest) -> Completion:
        with self._timer.stage("generate"):
            return await self._sampler.complete(request)

    async def release(self, conversation: str) -> None:
        """The conversation is over: let the sampler forget its token stream, if it keeps one."""
        await release(self._sampler, conversation)


class TimedSandbox:
    """Counts every call on a sandbox as stage `sandbox`."""

    def __init__(self, sandbox: Sandbox, timer: StageTimer) -> None:
        self._sandbox = sandbox
        self._timer = timer

    @property
    def id(self) -> str:
        return self._sandbox.id

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> ExecResult:
        with self._timer.stage("sandbox"):
            return await self._sandbox.exec(
                argv, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s
            )

    async def read_file(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        with self._timer.stage("sandbox"):
            return await self._sandbox.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        with self._timer.stage("sandbox"):
            await self._sandbox.write_file(path, data, mode=mode)

    async def fork(self) -> Sandbox:
        with self._timer.stage("sandbox"):
            return TimedSandbox(await self._sandbox.fork(), self._timer)

    async def hibernate(self) -> None:
        with self._timer.stage("sandbox"):
            await self._sandbox.hibernate()

    async def resume(self) -> None:
        with self._timer.stage("sandbox"):
            await self._sandbox.resume()

    async def close(self) -> None:
        with self._timer.stage("sandbox"):
            await self._sandbox.close()


class TimedSandboxes:
    """Counts forking from a template as stage `sandbox` too."""

    def __init__(self, sandboxes: Sandboxes, timer: StageTimer) -> None:
        self._sandboxes = sandboxes
        self._timer = timer

    async def create(self, environment: Environment, *, lease_s: float = 600.0) -> Sandbox:
        with self._timer.stage("sandbox"):
            sandbox = await self._sandboxes.create(environment, lease_s=lease_s)
        return TimedSandbox(sandbox, self._timer)

    async def connect(self, sandbox_id: str) -> Sandbox:
        with self._timer.stage("sandbox"):
            return TimedSandbox(await self._sandboxes.connect(sandbox_id), self._timer)
