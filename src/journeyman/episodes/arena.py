"""The arena: agent server, sandboxes and verifier, running and ready for attempts."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from journeyman.agent.client import AgentClient
from journeyman.agent.server import app
from journeyman.agent.serving import serving
from journeyman.agent.wire import SessionRequest
from journeyman.chat import ChatFormat
from journeyman.config import AgentConfig
from journeyman.episodes.timed import TimedSampler, TimedSandboxes
from journeyman.observe import StageTimer
from journeyman.sandbox.client import SandboxClient
from journeyman.store import Store
from journeyman.tasks.environment import prepare
from journeyman.tasks.grading import HarborVerifier
from journeyman.types import (
    Budget,
    Environment,
    Episode,
    Failure,
    InfraError,
    Sampler,
    StopReason,
    Task,
    Value,
    Verifier,
)


class Attempt(Value):
    """What distinguishes one attempt at a task from another."""

    kind: str
    """train, held_out or oracle."""
    group: str
    index: int
    temperature: float = 1.0

    @property
    def seed(self) -> int:
        """A stable 63-bit seed: the same attempt samples the same tokens from the same weights."""
        text = f"{self.kind}/{self.group}/{self.index}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


class Arena:
    """Runs attempts. Every attempt gets a fresh sandbox; grading gets another one."""

    def __init__(
        self,
        client: AgentClient,
        sandboxes: SandboxClient,
        verifier: Verifier,
        *,
        agent: AgentConfig,
        concurrency: int,
        timer: StageTimer,
    ) -> None:
        self._client = client
        self._sandboxes = sandboxes
        self._verifier = verifier
        self._agent = agent
        self._timer = timer
        self._places = asyncio.Semaphore(concurrency)
        self._environments: dict[str, asyncio.Task[Environment]] = {}

    async def attempt(self, task: Task, attempt: Attempt, *, grade: bool = True) -> Episode:
        """One graded episode. A machine's failure comes back as `Episode.failure`, never raised;
        a bug in our own code is raised."""
        started = time.time()
        async with self._places:
            try:
                return await self._run(task, attempt, grade, started)
            except InfraError as error:
                return _failed(task, attempt, error.failure(), started)

    async def environment(self, task: Task) -> Environment:
        """The task's environment; its template is built once, whoever asks first."""
        if task.digest not in self._environments:
            self._environments[task.digest] = asyncio.ensure_future(prepare(task, self._sandboxes))
        return await asyncio.shield(self._environments[task.digest])

    async def _run(self, task: Task, attempt: Attempt, grade: bool, started: float) -> Episode:
        environment = await self.environment(task)
        request = SessionRequest(
            environment=environment.model_copy(update={"stands_still": True}),
            budget=self._budget(task),
            temperature=attempt.temperature,
            seed=attempt.seed,
            kind=attempt.kind,
            task=task.id,
            group=attempt.group,
        )
        session = await self._client.open(request)
        forked = time.time()
        try:
            await self._client.send(session.id, task.instruction)
            episode = await self._client.episode(session.id, wait_s=self._agent.deadline_s + 30)
            acted = time.time()
            if episode is None:
                raise InfraError(f"session {session.id} on {task.id} did not end by its deadline")
            if grade and episode.failure is None:
                with self._timer.stage("grade"):
                    workspace = await self._sandboxes.connect(session.sandbox)
                    verdict = await self._verifier.grade(task, workspace)
                episode = episode.model_copy(update={"verdict": verdict})
        finally:
            await self._client.close_session(session.id)
        timings = {
            **episode.timings_s,
            "fork": forked - started,
            "act": acted - forked,
            "grade": time.time() - acted,
        }
        return episode.model_copy(update={"timings_s": timings, "index": attempt.index})

    def _budget(self, task: Task) -> Budget:
        """The tighter of the task's budget and the run's."""
        return Budget(
            tokens=min(task.budget.tokens, self._agent.tokens),
            reply_tokens=min(task.budget.reply_tokens, self._agent.reply_tokens),
            turns=min(task.budget.turns, self._agent.turns),
            deadline_s=min(task.budget.deadline_s, self._agent.deadline_s),
        )


def _failed(task: Task, attempt: Attempt, failure: Failure, started: float) -> Episode:
    return Episode(
        id=f"{attempt.group}/{attempt.kind}/{attempt.index}/{started:.6f}",
        task=task.id,
        group=attempt.group,
        kind=attempt.kind,
        index=attempt.index,
        prompt=(),
        turns=(),
        streams=(),
        stop=StopReason.FAILED,
        failure=failure,
        started_at=started,
    )


@asynccontextmanager
async def open_arena(
    sampler: Sampler,
    chat: ChatFormat,
    sandbox_url: str,
    *,
    agent: AgentConfig,
    concurrency: int,
    timer: StageTimer | None = None,
    store: Store | None = None,
) -> AsyncIterator[Arena]:
    """Serve the agent on a loopback port, as `journeyman serve` does, and talk to it over HTTP.

    With a `store`, verdicts are remembered by task and final tree.
    """
    timer = timer or StageTimer()
    async with SandboxClient(sandbox_url) as sandboxes:
        timed = TimedSandboxes(sandboxes, timer)
        service = app(TimedSampler(sampler, timer), timed, chat=chat)
        verifier = HarborVerifier(sandboxes, store)
        async with serving(service) as url, AgentClient(url) as client:
            yield Arena(
                client, sandboxes, verifier, agent=agent, concurrency=concurrency, timer=timer
            )
