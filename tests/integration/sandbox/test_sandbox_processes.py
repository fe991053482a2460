"""Processes that outlive the call that started them, in a real sandbox."""

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from journeyman.config import home_dir
from journeyman.sandbox.client import TemplateSpec
from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.gvisor import GvisorDriver
from journeyman.sandbox.node.images import Images
from journeyman.sandbox.node.process_events import KEPT_BYTES, Ended, Missed, Output
from journeyman.sandbox.node.processes import GuestProcess, ProcessSpec, TerminalSize
from journeyman.sandbox.node.rootfs import install_agent, require_rootfs
from journeyman.sandbox.service.living import LivingSandbox
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.sandbox.service.templates import Templates
from journeyman.types.failure import SandboxError

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@asynccontextmanager
async def node(state: Path) -> AsyncIterator[tuple[SandboxManager, LivingSandbox]]:
    """A manager of its own with one sandbox."""
    driver = GvisorDriver()
    await driver.probe()
    rootfs = require_rootfs()
    agent = install_agent(rootfs, build_agent())
    home = home_dir()
    templates = Templates(home / "templates", Images(home / "images"), driver, rootfs, agent)
    manager = SandboxManager(state, driver, templates)
    await manager.start()
    try:
        template = await templates.build(TemplateSpec())
        yield manager, await manager.create(template, {}, 600)
    finally:
        await manager.stop()


@pytest.fixture
def with_sandbox(tmp_path: Path) -> Callable[..., None]:
    """Run a test's coroutine with a manager and a sandbox."""

    def run(test: Callable[[SandboxManager, LivingSandbox], Any]) -> None:
        async def main() -> None:
            async with node(tmp_path) as (manager, sandbox):
                await test(manager, sandbox)

        asyncio.run(main())

    return run


async def start(sandbox: LivingSandbox, *argv: str, **options: Any) -> GuestProcess:
    spec = ProcessSpec(argv=argv, env=PATH, **options)
    async with sandbox.guest() as link:
        return await sandbox.processes.start(link, spec)


async def heard(process: GuestProcess, replay: bool = True) -> tuple[dict[str, bytes], Ended]:
    """Everything it says until its end."""
    streams: dict[str, bytes] = {}
    async for event in process.events(replay):
        match event:
            case Output(stream=stream, data=data):
                streams[stream] = streams.get(stream, b"") + data
            case Ended() as end:
                return streams, end
    raise AssertionError("no end")


async def lines(process: GuestProcess, count: int, replay: bool = False) -> list[int]:
    """The next numbers of a process that counts."""
    found = b""
    async for event in process.events(replay):
        if isinstance(event, Output):
            found += event.data
        if found.count(b"\n") >= count:
            break
    return [int(line) for line in found.split(b"\n")[:-1]]


COUNTER = ("sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done")


def test_streams_end_and_surroundings_of_a_user(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        script = "id -un; id -g; pwd; echo $HOME $USER $SHELL; echo bad >&2; exit 3"
        streams, end = await heard(await start(sandbox, "sh", "-c", script, user="games", cwd="/"))
        assert streams["stdout"].split() == (
            b"games 60 / /usr/games games /usr/sbin/nologin".split()
        )
        assert streams["stderr"] == b"bad\n"
        assert end == Ended(exit_code=3)

    with_sandbox(test)


def test_a_user_has_no_rights_but_its_own(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        script = "touch /root/x; cat /proc/self/status; kill -9 1; id -G"
        streams, end = await heard(await start(sandbox, "sh", "-c", script, user="games", cwd="/"))
        status = dict(
            line.split(b":\t", 1) for line in streams["stdout"].splitlines() if b":\t" in line
        )
        assert int(status[b"CapEff"], 16) == int(status[b"CapPrm"], 16) == 0
        assert streams["stdout"].splitlines()[-1] == b"60"
        assert b"Permission denied" in streams["stderr"]
        assert end.exit_code == 0
        with pytest.raises(SandboxError, match="no user 'nobody-at-all'"):
            await start(sandbox, "true", user="nobody-at-all")

    with_sandbox(test)


def test_input_of_any_length_and_its_end(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, "sha256sum", stdin=True)
        data = b"\xff\0" * 1_000_000
        await process.send_input(data)
        await process.close_input()
        streams, _ = await heard(process)
        assert streams["stdout"].split()[0].decode() == hashlib.sha256(data).hexdigest()
        with pytest.raises(BrokenPipeError):
            await process.send_input(b"more")
        silent = await start(sandbox, "cat")
        assert (await heard(silent))[1] == Ended(exit_code=0)  # its input ends at once
        with pytest.raises(SandboxError, match="without stdin"):
            await silent.send_input(b"x")

    with_sandbox(test)


def test_a_terminal_has_a_size_that_changes(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        script = "tty; stty size; trap 'stty size; exit' WINCH; while :; do sleep 0.05; done"
        size = TerminalSize(rows=24, columns=80)
        process = await start(sandbox, "sh", "-c", script, terminal=size)
        found = b""
        async for event in process.events(replay=True):
            if isinstance(event, Output):
                assert event.stream == "terminal"
                found += event.data
            if found.endswith(b"24 80\r\n"):
                await asyncio.sleep(0.2)
                await process.resize(TerminalSize(rows=50, columns=132))
        assert found.split(b"\r\n")[1:] == [b"24 80", b"50 132", b""]
        assert found.startswith(b"/dev/pts/")

    with_sandbox(test)


def test_a_terminal_hands_control_c_to_the_program(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, "sleep", "100", terminal=TerminalSize(24, 80))
        await asyncio.sleep(0.3)
        await process.send_input(b"\x03")
        assert (await heard(process))[1] == Ended(signal=signal.SIGINT)

    with_sandbox(test)


def test_who_comes_late_hears_it_once(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, *COUNTER)
        first = await lines(process, 5, replay=True)
        await asyncio.sleep(0.5)
        second = await lines(process, 5, replay=True)
        assert first + second == list(range(len(first) + len(second)))
        await process.kill()

    with_sandbox(test)


def test_a_flood_without_listeners_is_bounded(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, "head", "-c", "20000000", "/dev/zero")
        await asyncio.sleep(1)  # nobody listens, so nobody can be told that it is done
        events = [event async for event in process.events(replay=True)]
        missed = sum(event.num_bytes for event in events if isinstance(event, Missed))
        kept = sum(len(event.data) for event in events if isinstance(event, Output))
        assert missed + kept == 20_000_000
        assert kept <= KEPT_BYTES

    with_sandbox(test)


def test_a_listener_who_does_not_read_holds_the_process_up(
    with_sandbox: Callable[..., None],
) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, "head", "-c", "20000000", "/dev/zero")
        events = process.events(replay=True)
        total = len((await anext(events)).data)  # type: ignore[union-attr]
        await asyncio.sleep(1)
        assert process.ended is None  # it would be done long ago
        async with sandbox.guest() as link:  # and nobody else waits for it
            other = await sandbox.processes.start(link, ProcessSpec(argv=["true"], env=PATH))
        assert (await heard(other))[1] == Ended(exit_code=0)
        async for event in events:
            total += len(event.data) if isinstance(event, Output) else 0
        assert total == 20_000_000

    with_sandbox(test)


def test_it_lives_through_hibernation_without_a_gap(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, *COUNTER)
        await asyncio.sleep(0.3)
        for _ in range(3):
            await sandbox.hibernate()
            await sandbox.resume()
        assert sandbox.processes.get(process.pid) is process
        found = await lines(process, 20, replay=True)
        assert found == list(range(len(found)))
        await process.signal(signal.SIGTERM)
        assert (await heard(process))[1] == Ended(signal=signal.SIGTERM)
        assert sandbox.processes.list() == []

    with_sandbox(test)


def test_a_fork_has_its_own_and_the_parent_keeps_its(with_sandbox: Callable[..., None]) -> None:
    async def test(manager: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, *COUNTER, tag="counter")
        await lines(process, 3)
        child = await manager.fork(sandbox)
        twin = child.processes.get(process.pid)
        assert twin is not None and twin.spec.tag == "counter"
        await process.kill()
        assert (await heard(process))[1].signal == signal.SIGKILL
        assert len(await lines(twin, 5)) == 5  # it did not notice
        manager.close(child.record.id)
        assert "closed" in (await heard(twin))[1].error

    with_sandbox(test)


def test_its_whole_tree_goes(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        script = "setsid sleep 1000 & (setsid setsid sleep 1001 &) ; sleep 1002"
        process = await start(sandbox, "sh", "-c", script)
        await asyncio.sleep(0.3)
        await process.kill()
        left, _ = await heard(await start(sandbox, "sh", "-c", "pgrep -a sleep; true"))
        assert left.get("stdout", b"") == b""

    with_sandbox(test)


def test_a_time_out_ends_it(with_sandbox: Callable[..., None]) -> None:
    async def test(_: SandboxManager, sandbox: LivingSandbox) -> None:
        process = await start(sandbox, "sh", "-c", "echo before; sleep 100", timeout_s=0.5)
        streams, end = await heard(process)
        assert streams == {"stdout": b"before\n"}
        assert end == Ended(timed_out=True)

    with_sandbox(test)
