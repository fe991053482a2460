"""A directory of this machine behind the Sandbox protocol, and a model that says what it is told.

Real files, real processes, real tokenizer, no isolation: for the pure logic of tools and loop.
The same tools run in real sandboxes in tests/integration/agent.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from journeyman.agent.tools import Workspace
from journeyman.chat import ChatFormat, format_call
from journeyman.types import (
    Completion,
    CompletionRequest,
    Environment,
    ExecResult,
    SandboxGone,
    UserError,
)


class DirectorySandbox:
    """Guest paths are host paths: use absolute ones below a temporary directory."""

    def __init__(self, name: str = "directory") -> None:
        self.id = name
        self.closed = False
        self.hibernated = 0

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "/",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float = 60.0,
    ) -> ExecResult:
        if self.closed:
            raise SandboxGone(f"sandbox {self.id} is closed")
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        timed_out = False
        finished = asyncio.create_task(process.communicate(stdin))
        try:
            done, _ = await asyncio.wait([finished], timeout=timeout_s)
            timed_out = not done
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = await finished
        code = None if timed_out else process.returncode
        ended = time.monotonic() - began
        return ExecResult(
            exit_code=code, timed_out=timed_out, stdout=stdout, stderr=stderr, duration_s=ended
        )

    async def read_file(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        if self.closed:
            raise SandboxGone(f"sandbox {self.id} is closed")
        if os.stat(path).st_size > max_bytes:
            raise UserError(f"larger than {max_bytes} bytes")
        return await asyncio.to_thread(Path(path).read_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(target.name + ".draft")
        draft.write_bytes(data)
        draft.chmod(mode)
        draft.replace(target)

    async def fork(self) -> "DirectorySandbox":
        raise NotImplementedError

    async def hibernate(self) -> None:
        self.hibernated += 1

    async def resume(self) -> None:
        return

    async def close(self) -> None:
        self.closed = True


class DirectorySandboxes:
    """Gives one sandbox after the other and remembers them."""

    def __init__(self) -> None:
        self.made: list[DirectorySandbox] = []

    async def create(self, environment: Environment, *, lease_s: float = 600.0) -> DirectorySandbox:
        sandbox = DirectorySandbox(f"directory-{len(self.made)}")
        for path, content in environment.files.items():
            await sandbox.write_file(path, content)
        self.made.append(sandbox)
        return sandbox

    async def connect(self, sandbox_id: str) -> DirectorySandbox:
        return next(s for s in self.made if s.id == sandbox_id)


Reply = str | Callable[[CompletionRequest], Awaitable[str]]


class ScriptedModel:
    """Says the n-th reply at the n-th request, with the ids of the real tokenizer."""

    def __init__(self, chat: ChatFormat, *replies: Reply) -> None:
        self.chat = chat
        self.replies = list(replies)
        self.requests: list[CompletionRequest] = []
        self.released: list[str] = []

    async def complete(self, request: CompletionRequest) -> Completion:
        self.requests.append(request)
        reply = self.replies.pop(0)
        text = reply if isinstance(reply, str) else await reply(request)
        ids = [*self.chat.encode(text), self.chat.end_of_turn]
        fits = len(ids) <= request.max_tokens
        ids = ids[: request.max_tokens]
        return Completion(
            message=self.chat.parse(self.chat.decode_reply(ids)),
            stop="end_of_turn" if fits else "length",
            prompt_token_ids=tuple(self.chat.render(request.messages, request.tools)),
            token_ids=tuple(ids),
            logprobs=(-0.5,) * len(ids),
            versions=(7,) * len(ids),
        )

    async def release(self, conversation: str) -> None:
        self.released.append(conversation)


@pytest.fixture(scope="session")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(DirectorySandbox(), str(tmp_path), output_chars=2000, command_s=60.0)


@pytest.fixture
def call() -> Callable[..., str]:
    def write(tool: str, **arguments: object) -> str:
        return format_call(tool, arguments)

    return write


@pytest.fixture
def scripted(chat: ChatFormat) -> Callable[..., ScriptedModel]:
    return lambda *replies: ScriptedModel(chat, *replies)


@pytest.fixture
def sandboxes() -> DirectorySandboxes:
    return DirectorySandboxes()
