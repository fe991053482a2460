"""One session: a sandbox, a history, an event log, and at most one turn loop at a time."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from journeyman.agent import prompt
from journeyman.agent.conversation import Conversation
from journeyman.agent.counting import TokenCounter
from journeyman.agent.events import Event, EventLog
from journeyman.agent.loop import run_to_stop
from journeyman.agent.tools import BASH, Toolbox, ToolRefusal, Workspace, specs
from journeyman.agent.tools.arguments import bind
from journeyman.agent.wire import Command, SessionInfo, SessionRequest
from journeyman.types import (
    Environment,
    Episode,
    Failure,
    InfraError,
    Sampler,
    Sandbox,
    StopReason,
    UserError,
)

MAX_OUTPUT_CHARS = 30_000
CHARS_PER_BUDGET_TOKEN = 2
"""One tool result takes at most about half of a small budget (some 3.5 characters a token)."""
MAX_QUEUED = 16

logger = logging.getLogger(__name__)

OnEpisode = Callable[[Episode], Awaitable[None]]


@dataclass(frozen=True)
class Services:
    """What sessions share. The sampler is a ChatService, a Ray actor, or a remote endpoint."""

    sampler: Sampler
    log: EventLog
    counter: TokenCounter
    on_episode: OnEpisode | None = None
    command_s: float = 60.0
    idle_s: float | None = None
    """Hibernate a sandbox that was idle for so long; None: never."""


@dataclass
class Session:
    """Created by `SessionTable.open`; all methods run on one event loop."""

    id: str
    request: SessionRequest
    environment: Environment
    sandbox: Sandbox
    services: Services
    created_at: float = field(default_factory=time.time)
    upload: bytes | None = None
    """The repository a person sent, as a tar archive: part of where the patch starts from."""

    def __post_init__(self) -> None:
        self._inbox: list[str] = []
        self._changed = asyncio.Event()
        self._followers: set[asyncio.Queue[Event]] = set()
        self._worker: asyncio.Task[None] | None = None
        self._sleep: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._turns: asyncio.Task[tuple[StopReason, Failure | None]] | None = None
        self._talk: Conversation | None = None
        self._stop: StopReason | None = None
        self._failure: Failure | None = None
        self._episode: Episode | None = None
        self._crash: BaseException | None = None
        self._closed = False
        self._toolbox = Toolbox(
            Workspace(
                sandbox=self.sandbox,
                workdir=self.environment.workdir,
                output_chars=min(
                    MAX_OUTPUT_CHARS, CHARS_PER_BUDGET_TOKEN * self.request.budget.tokens
                ),
                command_s=min(self.services.command_s, self.request.budget.deadline_s),
            )
        )
        self._last_event = 0
        self._emit("session", {"sandbox": self.sandbox.id, "kind": self.request.kind})

    @property
    def running(self) -> bool:
        """Whether a turn loop is at work or waits to start."""
        return bool(self._inbox) or self._turns is not None

    def info(self) -> SessionInfo:
        """The session as clients see it."""
        state = "closed" if self._closed else "running" if self.running else "idle"
        return SessionInfo(
            id=self.id,
            sandbox=self.sandbox.id,
            kind=self.request.kind,
            task=self.request.task,
            state=state,
            stop=self._stop,
            events=self._last_event,
            created_at=self.created_at,
        )

    def send(self, content: str) -> None:
        """Queue a message; turn loops run one after the other. Raises UserError when full."""
        if self._closed:
            raise UserError("the session is closed", "open a new one")
        if len(self._inbox) >= MAX_QUEUED:
            raise UserError(f"{MAX_QUEUED} messages wait already", "wait for the agent, or cancel")
        self._inbox.append(content)
        if self._sleep is not None:
            self._sleep.cancel()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name=f"session {self.id}")

    async def run_command(self, command: Command) -> str:
        """Run a person's command beside the agent's. Raises UserError for a malformed one."""
        workspace = replace(self._toolbox.workspace, output_chars=MAX_OUTPUT_CHARS)
        try:
            arguments, _ = bind(BASH, {"command": command.command, "timeout": command.timeout_s})
        except ToolRefusal as refusal:
            raise UserError(str(refusal)) from None
        text = await BASH.run(workspace, arguments)
        self._emit("command", {"command": command.command, "content": text})
        return text

    async def cancel(self) -> bool:
        """End the running turn loop and drop queued messages; false when none was running.

        Returns when the running tool's processes are gone and the history is complete.
        """
        self._inbox.clear()
        turns = self._turns
        if turns is None:
            return False
        turns.cancel()
        await self._wait(lambda: self._turns is not turns)
        return True

    async def episode(self, wait_s: float) -> Episode | None:
        """The record so far, once no turn loop is at work; None when that takes longer.

        Raises what ended the session's worker, if something did.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wait(lambda: not self.running)
        if self._crash is not None:
            raise self._crash
        return None if self.running else self._episode

    async def follow(self, after: int) -> AsyncIterator[Event]:
        """All events after that number, then new ones as they come, until the session closes."""
        live: asyncio.Queue[Event] = asyncio.Queue()
        told = self.services.log.after(self.id, after)
        self._followers.add(live)
        try:
            for event in told:
                yield event
            while not (self._closed and live.empty()):
                event = await live.get()
                if event.number > after:
                    yield event
        finally:
            self._followers.discard(live)

    async def close(self) -> None:
        """End the work and the sandbox. Idempotent."""
        if self._closed:
            return
        await self.cancel()
        self._closed = True
        self._emit("closed", {})
        self._notify()
        if self._sleep is not None:
            self._sleep.cancel()
        try:
            await release(self.services.sampler, self.id)
        finally:
            await self.sandbox.close()

    async def _work(self) -> None:
        """Consumes the inbox, produces episodes; ends when idle so that it holds nothing."""
        try:
            while self._inbox:
                await self._run(self._inbox.pop(0))
        except Exception as error:
            self._crash = error
            self._inbox.clear()
            self._emit("error", {"cause": f"{type(error).__name__}: {error}"})
            logger.exception("session %s ended by a bug", self.id)
        finally:
            self._worker = None
            self._notify()
        if self.services.idle_s is not None:
            loop = asyncio.get_running_loop()
            self._sleep = loop.call_later(self.services.idle_s, self._fall_asleep)

    async def _run(self, content: str) -> None:
        self._emit("user", {"content": content})
        talk = self._hear(content)
        began = time.monotonic()
        turns = self._turns = asyncio.create_task(
            run_to_stop(talk, self.services.sampler, self._toolbox, self.request.budget, self._emit)
        )
        try:
            await asyncio.wait([turns])
            cancelled_unstarted = (StopReason.CANCELLED, None)
            self._stop, self._failure = cancelled_unstarted if turns.cancelled() else turns.result()
            self._episode = self._record(talk, time.monotonic() - began)
            if self.services.on_episode is not None:
                await self.services.on_episode(self._episode)
        finally:
            self._turns = None
        detail = {"failure": self._failure.model_dump(mode="json")} if self._failure else {}
        self._emit("stop", {"reason": self._stop, **detail})

    def _fall_asleep(self) -> None:
        self._sleep = asyncio.create_task(self._hibernate())

    async def _hibernate(self) -> None:
        """Put an idle sandbox on disk; its next use wakes it."""
        try:
            await self.sandbox.hibernate()
            self._emit("hibernated", {})
        except InfraError as error:
            self._emit("error", {"cause": error.cause})

    def _hear(self, content: str) -> Conversation:
        if self._talk is not None:
            self._talk.say(prompt.user(content))
            return self._talk
        self._talk = Conversation(
            self.id,
            prompt.opening(content),
            specs(),
            self.services.counter,
            budget_tokens=self.request.budget.tokens,
            temperature=self.request.temperature,
            seed=self.request.seed,
        )
        return self._talk

    def _record(self, talk: Conversation, wall_s: float) -> Episode:
        assert self._stop is not None
        return Episode(
            id=self.id,
            task=self.request.task,
            group=self.request.group,
            kind=self.request.kind,
            prompt=talk.prompt,
            turns=tuple(talk.turns),
            streams=talk.recorder.streams(),
            stop=self._stop,
            failure=self._failure,
            timings_s={
                "model": sum(turn.model_s for turn in talk.turns),
                "tools": sum(turn.tools_s for turn in talk.turns),
                "last_loop": wall_s,
            },
            started_at=self.created_at,
        )

    def _emit(self, type: str, data: dict[str, object]) -> None:
        event = self.services.log.append(self.id, type, data)
        self._last_event = event.number
        for follower in self._followers:
            follower.put_nowait(event)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


async def release(sampler: Sampler, conversation: str) -> None:
    """Tell a sampler that keeps token streams that this conversation is over."""
    forget = getattr(sampler, "release", None)
    if forget is not None:
        outcome = forget(conversation)
        if inspect.isawaitable(outcome):
            await outcome
