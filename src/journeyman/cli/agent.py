"""Let the agent work on a repository: in a sandbox, shown as it goes, applied only if wanted."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from journeyman.agent import AgentClient, SessionRequest
from journeyman.agent.repository import pack
from journeyman.agent.serving import serving
from journeyman.cli.composition import Production, composed, find_checkpoint
from journeyman.cli.failing_test import FailingTest, find_failing, passed, pytest_command
from journeyman.cli.serve import TOKEN_VARIABLE, CheckpointOption, DriverOption, StoreOption
from journeyman.cli.session_view import SessionView
from journeyman.observe.console import console
from journeyman.types import (
    Budget,
    Episode,
    FailureKind,
    InfraError,
    JourneymanError,
    StopReason,
    UserError,
)

_LEASE_S = 24 * 3600.0
_DEADLINE_S = 3600.0
_ATTEMPTS = 8
_RETRY_TEMPERATURE = 1.0
"""Of attempts that are told what an earlier one was told: the likeliest tokens have failed."""


@dataclass(frozen=True)
class Work:
    """One person's request."""

    instruction: str
    test: str | None
    repository: Path
    archive: bytes
    """The repository, packed."""
    budget: Budget
    temperature: float
    attempts: int = 1
    """At most so many sessions, until the test passes."""


@dataclass(frozen=True)
class Outcome:
    """What came of the last attempt."""

    patch: bytes
    test_passes: bool | None
    """None if no test was named."""


def register(app: typer.Typer) -> None:
    """Add `journeyman agent`."""

    @app.command("agent")
    def agent(
        instruction: Annotated[str, typer.Argument(help="What to do, in words.")] = "",
        *,
        repo: Annotated[
            Path, typer.Option(help="The repository. The agent works on a copy of it.")
        ],
        test: Annotated[
            str | None,
            typer.Option(
                help="A failing test (a file, a directory, or pytest's name of it). It runs in "
                "the sandbox first, and the agent is told what fails, how, and where.",
                show_default=False,
            ),
        ] = None,
        checkpoint: CheckpointOption = None,
        server: Annotated[
            str | None, typer.Option(help="Use the agent server at this URL instead of a new one.")
        ] = None,
        apply: Annotated[
            bool, typer.Option("--apply", help="Apply the patch without asking.")
        ] = False,
        driver: DriverOption = "auto",
        store: StoreOption = None,
        tokens: Annotated[
            int, typer.Option(min=256, help="Length of the whole session, in tokens.")
        ] = Budget().tokens,
        turns: Annotated[int, typer.Option(min=1, help="Most replies of the agent.")] = 16,
        temperature: Annotated[
            float, typer.Option(min=0.0, help="Of sampling; 0 always takes the likeliest token.")
        ] = 0.0,
        attempts: Annotated[
            int | None,
            typer.Option(
                min=1,
                help="With --test: start again in a fresh sandbox, at most so often, until the "
                "test passes. Where pytest does not tell the faulty line, each attempt supposes "
                "another; once all were supposed, it samples at temperature 1. [default: 8]",
                show_default=False,
            ),
        ] = None,
    ) -> None:
        """Work on a copy of the repository in a sandbox and show the patch.

        The steps go to stderr; stdout gets the patch. With --test the exit status is 1 when the
        test still fails. Ctrl-C ends the work and everything that runs for it.
        """
        if server and (checkpoint or store or driver != "auto"):
            raise UserError(
                "--checkpoint, --driver and --store have no effect with --server",
                "leave them out: they are the server's",
            )
        if not instruction and test is None:
            raise UserError(
                "nothing to do", "say what in words, or name a failing test with --test"
            )
        if attempts and test is None:
            raise UserError(
                "--attempts has no effect without --test", "name the test that tells when to stop"
            )
        budget = Budget(tokens=tokens, reply_tokens=tokens, turns=turns, deadline_s=_DEADLINE_S)
        tries = (attempts or _ATTEMPTS) if test else 1
        work = Work(instruction, test, repo, pack(repo), budget, temperature, tries)
        if server:
            outcome = asyncio.run(work_at(server, os.environ.get(TOKEN_VARIABLE), work))
        else:
            wanted = Production(checkpoint=find_checkpoint(checkpoint), driver=driver, store=store)
            outcome = asyncio.run(_work_here(wanted, work))
        _finish(outcome, repo, apply)


async def _work_here(wanted: Production, work: Work) -> Outcome:
    """A server for this one session, on a loopback port with a token of its own."""
    token = secrets.token_urlsafe()
    async with AsyncExitStack() as stack:
        with console().status("starting the model and the sandboxes"):
            application = await stack.enter_async_context(composed(replace(wanted, token=token)))
            url = await stack.enter_async_context(serving(application))
        return await work_at(url, token, work)


async def work_at(url: str, token: str | None, work: Work) -> Outcome:
    """Send repository and instruction, show what happens, give the patch: of the first attempt
    after which the test passes, else of the last."""
    outcome = Outcome(b"", None)
    async with AgentClient(url, token=token) as client:
        failing = await _find_failing(client, work) if work.test else None
        for number in range(work.attempts):
            outcome = await _attempt(client, work, failing, number)
            if outcome.test_passes is not False:
                break
    return outcome


async def _find_failing(client: AgentClient, work: Work) -> FailingTest:
    """Run the test on the repository as it is, in a sandbox of its own."""
    async with _open(client, SessionRequest(lease_s=_LEASE_S)) as session:
        await client.upload(session, work.archive)
        return find_failing(await _run_test(client, session, work), work.repository)


async def _attempt(
    client: AgentClient, work: Work, failing: FailingTest | None, number: int
) -> Outcome:
    """One session, from the repository as it is."""
    told = work.instruction
    if failing is not None:
        told = f"{told}\n{failing.instruction(number)}".lstrip()
        console().print(Text(told, style="dim"))
    temperature = work.temperature
    if failing is not None and number >= max(1, len(failing.suspects)):
        temperature = max(temperature, _RETRY_TEMPERATURE)
    request = SessionRequest(budget=work.budget, temperature=temperature, lease_s=_LEASE_S)
    async with _open(client, request) as session:
        await client.upload(session, work.archive)
        await client.send(session, told)
        view = SessionView(console())
        async for event in client.events(session):
            view.show(event)
            if event.type in ("stop", "error"):
                break
        _raise_failure(await client.episode(session, wait_s=_DEADLINE_S))
        passes = passed(await _run_test(client, session, work)) if work.test else None
        if passes is not None:
            console().print(Text("the test passes" if passes else "the test still fails"))
        return Outcome(await client.patch(session), passes)


async def _run_test(client: AgentClient, session: str, work: Work) -> str:
    with console().status("running the test"):
        return await client.run_command(session, pytest_command(work.test or ""))


@asynccontextmanager
async def _open(client: AgentClient, request: SessionRequest) -> AsyncIterator[str]:
    """A session that is closed at the end, also after Ctrl-C: its tools end with it."""
    session = (await client.open(request)).id
    try:
        yield session
    finally:
        await client.close_session(session)


def _raise_failure(episode: Episode | None) -> None:
    if episode is None or episode.stop is not StopReason.FAILED or episode.failure is None:
        return
    failure = episode.failure
    if failure.kind is FailureKind.BUG:
        raise JourneymanError(f"a bug in the agent server: {failure.detail}")
    raise InfraError(failure.detail)


def _finish(outcome: Outcome, repository: Path, apply: bool) -> None:
    """Show the patch and apply it if wanted. If the test still fails, nothing is applied without
    a question, and SystemExit(1) is raised."""
    fails = outcome.test_passes is False
    if outcome.patch:
        _offer(outcome.patch, repository, apply and not fails)
    else:
        typer.echo("nothing was changed", err=True)
    if fails:
        raise SystemExit(1)


def _offer(patch: bytes, repository: Path, apply: bool) -> None:
    if sys.stdout.isatty():
        text = patch.decode("utf-8", "replace")
        Console().print(Syntax(text, "diff", theme="ansi_dark", background_color="default"))
        apply = apply or typer.confirm(f"Apply this to {repository}?", default=False)
    else:
        sys.stdout.buffer.write(patch)
    if apply:
        apply_patch(patch, repository)
        typer.echo(f"applied to {repository}", err=True)


def apply_patch(patch: bytes, repository: Path) -> None:
    """All of it or nothing. git keeps every path inside the repository.

    Raises UserError when it does not fit, for instance because files changed meanwhile.
    """
    root = repository.resolve()
    # Paths are relative to the directory given, also when that lies inside a larger repository.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)}
    command = ["git", "apply", "--whitespace=nowarn", "-"]
    try:
        done = subprocess.run(
            command, input=patch, cwd=root, env=environment, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise UserError("git is needed to apply the patch", "install git") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UserError(f"the patch does not apply to {repository}: {said}", "apply it by hand")
