"""How production is put together: engine, chat service, sandboxes, agent server, store.

Training composes the same agent server over the same sandboxes (`journeyman.episodes`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastapi import FastAPI

from journeyman.agent.models import OpenAISampler
from journeyman.agent.server import app
from journeyman.agent.session import OnEpisode
from journeyman.chat import ChatFormat
from journeyman.config.home import home_dir
from journeyman.sandbox.client import SandboxClient, TemplateSpec, Workdir
from journeyman.sandbox.service.launch import running_service
from journeyman.store import Store
from journeyman.types import Environment, Episode, Sampler, UserError

if TYPE_CHECKING:
    from journeyman.inference import ChatService

DEFAULT_MODEL = "smollm2-135m"
SESSIONS_RUN = "sessions"
"""People's sessions stand in the store under this run, beside the episodes of training."""
IDLE_S = 300.0
KV_TOKENS = 32_768
MAX_SEQUENCES = 16
_WORKDIR = "/app"

Driver = Literal["auto", "gvisor", "qemu", "bubblewrap"]


@dataclass(frozen=True)
class Production:
    """What to serve. Exactly one of `checkpoint` and `model_url` is given."""

    checkpoint: Path | None = None
    model_url: str | None = None
    model: str = ""
    driver: Driver = "auto"
    store: str | None = None
    token: str | None = None


def find_checkpoint(given: str | None, runs: Path = Path("runs")) -> Path:
    """The directory of a checkpoint: as given, of a fetched model, or the newest of all runs.

    Raises UserError naming where was looked.
    """
    if given is None:
        written = sorted(runs.glob("*/checkpoint/config.json"), key=lambda f: f.stat().st_mtime)
        if written:
            return written[-1].parent
        given = DEFAULT_MODEL
    for directory in (Path(given), home_dir() / "models" / given):
        if (directory / "config.json").is_file():
            return directory
    raise UserError(
        f"no checkpoint {given!r}: no config.json in {given} or {home_dir() / 'models' / given}",
        f"name another with --checkpoint, or run `journeyman model fetch {DEFAULT_MODEL}`",
    )


@asynccontextmanager
async def composed(wanted: Production) -> AsyncIterator[FastAPI]:
    """The agent server's application, with everything behind it running.

    With a checkpoint, its model answers OpenAI's chat completions on the same port.
    """
    async with AsyncExitStack() as stack:
        store = Store(wanted.store)
        stack.callback(store.close)
        service_url = await stack.enter_async_context(running_service(driver=wanted.driver))
        sandboxes = await stack.enter_async_context(SandboxClient(service_url))
        sampler, chat, service = await _model(wanted, stack)
        application = app(
            sampler,
            sandboxes,
            on_episode=_record_in(store),
            chat=chat,
            environment=await _default_environment(sandboxes),
            token=wanted.token,
            idle_s=IDLE_S,
        )
        if service is not None:
            from journeyman.inference.server import app as model_app  # noqa: PLC0415

            application.mount("/", model_app(service))  # what is no route of the agent's
        yield application


async def _default_environment(sandboxes: SandboxClient) -> Environment:
    """An empty working directory beside Python, git, ripgrep and pytest."""
    spec = TemplateSpec(layers=(Workdir(path=_WORKDIR),))
    return Environment(template=await sandboxes.build_template(spec), workdir=_WORKDIR)


async def _model(
    wanted: Production, stack: AsyncExitStack
) -> tuple[Sampler, ChatFormat | None, "ChatService | None"]:
    if wanted.model_url is not None:
        foreign = OpenAISampler(wanted.model_url, wanted.model)
        return await stack.enter_async_context(foreign), None, None
    # Imported here: a foreign model needs no torch on this machine.
    from journeyman.inference import ChatService, Engine  # noqa: PLC0415

    assert wanted.checkpoint is not None
    chat = ChatFormat.load(wanted.checkpoint)
    engine = await asyncio.to_thread(
        Engine, wanted.checkpoint, kv_tokens=KV_TOKENS, max_sequences=MAX_SEQUENCES
    )
    stack.callback(engine.close)
    service = ChatService(engine, chat)
    return service, chat, service


def _record_in(store: Store) -> OnEpisode:
    async def record(episode: Episode) -> None:
        await asyncio.to_thread(store.save_episode, episode, SESSIONS_RUN)

    return record
