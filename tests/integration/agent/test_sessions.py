"""Sessions in real sandboxes, over a real socket."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journeyman.agent import AgentClient, SessionRequest
from journeyman.agent.repository import pack
from journeyman.agent.server import app, serving
from journeyman.chat import ChatFormat, format_call
from journeyman.inference import ScriptedSampler
from journeyman.sandbox.client import SandboxClient
from journeyman.types import (
    Budget,
    Completion,
    CompletionRequest,
    Environment,
    Episode,
    FailureKind,
    StopReason,
)

Run = Callable[..., Any]
REPAIR = [
    ("read", {"file_path": "pkg/mod.py", "offset": 1, "limit": 2}),
    ("edit", {"file_path": "pkg/mod.py", "old_string": "x + 2", "new_string": "x * 2"}),
    ("bash", {"command": "python3 -m pytest -q tests 2>&1 | tail -1"}),
    ("grep", {"pattern": "def ", "path": "pkg"}),
    ("submit", {}),
]


def replay(chat: ChatFormat, calls: list[tuple[str, dict[str, Any]]]) -> ScriptedSampler:
    """The given calls, then a last word: how the oracle's episodes are made."""
    texts = [format_call(name, arguments) for name, arguments in calls]
    return ScriptedSampler(chat, lambda _: [*texts, "Done."])


async def episode_of(client: AgentClient, request: SessionRequest, say: str) -> tuple[str, Episode]:
    session = await client.open(request)
    await client.send(session.id, say)
    episode = await client.episode(session.id, wait_s=60)
    assert episode is not None
    return session.id, episode


def test_a_replayed_repair_is_an_episode_with_real_tool_output(
    run: Run, service: SandboxClient, environment: Environment, chat: ChatFormat, instruction: str
) -> None:
    async def body() -> None:
        application = app(replay(chat, REPAIR), service, chat=chat)
        async with serving(application) as url, AgentClient(url) as client:
            request = SessionRequest(environment=environment, kind="oracle")
            session, episode = await episode_of(client, request, instruction)
            assert episode.stop is StopReason.SUBMITTED
            said = [r.content for turn in episode.turns for r in turn.results]
            assert said[0] == "1-2 of 6\ndef double(x):\n    return x + 2"
            assert said[1] == "edited line 2"
            assert said[2].startswith("1 passed")
            assert said[3] == "pkg/mod.py:1:def double(x):\npkg/mod.py:5:def half(x):"
            patch = await client.patch(session)
            assert (
                patch.splitlines()[-8:]
                == [
                    *(b"--- a/pkg/mod.py", b"+++ b/pkg/mod.py", b"@@ -1,5 +1,5 @@"),
                    *(b" def double(x):", b"-    return x + 2", b"+    return x * 2", b" ", b" "),
                ]
                or b"-    return x + 2\n+    return x * 2\n" in patch
            )
            assert b"test_mod" not in patch and b"cache" not in patch
            sandbox = (await client.info(session)).sandbox
            workspace = await service.connect(sandbox)
            assert b"x * 2" in await workspace.read_file("/app/pkg/mod.py")
            await client.close_session(session)

    run(body())


class Recording:
    """Passes requests on and remembers what the model saw."""

    def __init__(self, chat: ChatFormat) -> None:
        self.inner = replay(chat, REPAIR)
        self.seen: list[tuple[int, ...]] = []
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await self.inner.complete(request)
        self.seen.append(completion.prompt_token_ids)
        self.requests.append(request)
        return completion


async def train(url: str, environment: Environment, instruction: str) -> None:
    """As the controller does: the project stands in the template."""
    async with AgentClient(url) as client:
        request = SessionRequest(environment=environment, kind="train", task="t", group="g")
        session, _ = await episode_of(client, request, instruction)
        await client.close_session(session)


async def serve(url: str, repository: Path, instruction: str) -> bytes:
    """As `journeyman agent` does: the project is uploaded. Gives the patch."""
    async with AgentClient(url, token="t") as client:
        opened = await client.open(SessionRequest(temperature=0.2))
        await client.upload(opened.id, pack(repository))
        await client.send(opened.id, instruction)
        episode = await client.episode(opened.id, wait_s=60)
        assert episode is not None and episode.stop is StopReason.SUBMITTED
        patch = await client.patch(opened.id)
        await client.close_session(opened.id)
        return patch


@pytest.fixture
def apps(service: SandboxClient, bare: Environment, chat: ChatFormat) -> dict[str, Any]:
    """The two ways the application is composed, each with the record of what its model saw."""
    training, person = Recording(chat), Recording(chat)
    options = {"environment": bare, "token": "t", "idle_s": 60.0}
    return {
        "training": (training, app(training, service, chat=chat)),
        "person": (person, app(person, service, chat=chat, **options)),
    }


def test_the_model_sees_the_same_tokens_in_training_and_in_a_persons_session(
    run: Run, apps: dict[str, Any], environment: Environment, repository: Path, instruction: str
) -> None:
    training, training_app = apps["training"]
    person, person_app = apps["person"]

    async def body() -> bytes:
        async with serving(training_app) as url:
            await train(url, environment, instruction)
        async with serving(person_app) as url:
            return await serve(url, repository, instruction)

    patch = run(body())
    assert len(training.seen) == len(REPAIR)
    # The test run prints how long it took: the one thing that may differ between two runs.
    assert training.seen[:3] == person.seen[:3]
    assert [r.tools for r in training.requests] == [r.tools for r in person.requests]
    subprocess.run(["git", "apply", "-"], input=patch, cwd=repository, check=True)
    assert b"x * 2" in (repository / "pkg/mod.py").read_bytes()


COUNT_SLEEPERS = (
    "import glob\n"
    "lines = [open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline')]\n"
    "print(sum(line.startswith(b'sleep\\0') for line in lines))\n"
)


@pytest.mark.parametrize(
    "command",
    ["sleep 7391", "setsid sleep 7391 & sleep 7391", "(sleep 7391 &) ; exec sleep 7391"],
)
def test_cancelling_ends_every_process_of_the_running_tool(
    run: Run, service: SandboxClient, environment: Environment, chat: ChatFormat, command: str
) -> None:
    async def body() -> None:
        sampler = replay(chat, [("bash", {"command": command})])
        application = app(sampler, service, chat=chat)
        async with serving(application) as url, AgentClient(url) as client:
            session = await client.open(SessionRequest(environment=environment))
            workspace = await service.connect(session.sandbox)

            async def sleepers() -> int:
                return int((await workspace.exec(["python3", "-c", COUNT_SLEEPERS])).stdout)

            await client.send(session.id, "go")
            deadline = time.monotonic() + 60
            while not await sleepers():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert (await client.cancel(session.id)).stop is StopReason.CANCELLED
            deadline = time.monotonic() + 30
            while await sleepers():
                assert time.monotonic() < deadline
            await client.send(session.id, "and now?")
            episode = await client.episode(session.id, wait_s=90)
            assert episode is not None and episode.stop is StopReason.ANSWERED
            assert episode.turns[0].results[0].content == "interrupted"
            await client.close_session(session.id)

    run(body())


def test_a_sandbox_that_dies_in_the_middle_is_infra(
    run: Run, service: SandboxClient, environment: Environment, chat: ChatFormat
) -> None:
    async def body() -> None:
        sampler = replay(chat, [("bash", {"command": "sleep 60"})])
        async with serving(app(sampler, service, chat=chat)) as url, AgentClient(url) as client:
            session = await client.open(SessionRequest(environment=environment))
            await client.send(session.id, "go")
            async for event in client.events(session.id):
                if event.type == "call":
                    break
            await (await service.connect(session.sandbox)).close()
            episode = await client.episode(session.id, wait_s=90)
            assert episode is not None and episode.failure is not None
            assert episode.failure.kind is FailureKind.INFRA
            await client.close_session(session.id)

    run(body())


HOSTILE = [
    ("bash", {"command": "echo \0"}),
    ("read", {"file_path": "a\0b"}),
    ("read", {"file_path": "x" * 300}),
    ("read", {"file_path": "pkg/mod.py/deeper"}),
    ("read", {"file_path": "/dev/zero"}),
    ("read", {"file_path": "/proc/self/mem"}),
    ("edit", {"file_path": "/proc/version", "old_string": "Linux", "new_string": "x"}),
    ("edit", {"file_path": "/sys/new", "old_string": "", "new_string": "x"}),
    ("grep", {"pattern": "root", "path": "/"}),
    ("bash", {"command": "yes | head -c 50000000"}),
    ("bash", {"command": "cat /dev/urandom | head -c 3000"}),
    ("bash", {"command": ":(){ :|:& };:", "timeout": 3}),
    ("submit", {}),
]


def test_hostile_calls_are_the_policys_doing_and_the_episode_goes_on(
    run: Run, service: SandboxClient, environment: Environment, chat: ChatFormat
) -> None:
    async def body() -> None:
        sampler = replay(chat, HOSTILE)
        application = app(sampler, service, chat=chat, command_s=60)
        async with serving(application) as url, AgentClient(url) as client:
            budget = Budget(tokens=60_000, reply_tokens=600, turns=20, deadline_s=200)
            request = SessionRequest(environment=environment, budget=budget)
            session, episode = await episode_of(client, request, "go")
            for turn in episode.turns:
                print(turn.reply.content[:90], "→", turn.results[0].content[:150].encode())
            assert episode.failure is None
            assert episode.stop is StopReason.SUBMITTED
            assert len(episode.turns) == len(HOSTILE)
            await client.close_session(session)

    run(body())
