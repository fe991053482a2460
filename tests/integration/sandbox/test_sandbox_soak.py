"""Thousands of lifecycles: nothing is left and nothing grows. In small with every test run."""

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from engines import engine_pid, left_of

from journeyman.sandbox.client import RemoteSandbox, SandboxClient
from journeyman.types import Environment, SandboxError, SandboxGone

GROWTH = 64 << 20
"""Bytes of memory that the service may gain; one leaked buffer a lifecycle is more."""


async def lifecycle(service: SandboxClient, template: str, number: int) -> None:
    """One of the ways in which a sandbox lives and ends."""
    way = random.Random(number)
    sandbox = await service.create(Environment(template=template), lease_s=120)
    try:
        await sandbox.write_file("/app/number", str(number).encode())
        if way.random() < 0.2:
            await sandbox.hibernate()
            await sandbox.resume()
        if way.random() < 0.3:
            await holds(await sandbox.fork(), number)
        result = await sandbox.exec(["cat", "/app/number"])
        assert result.stdout == str(number).encode()
    finally:
        await sandbox.close()


async def holds(child: RemoteSandbox, number: int) -> None:
    try:
        assert await child.read_file("/app/number") == str(number).encode()
    finally:
        await child.close()


def service_process(url: str) -> Path:
    """/proc's folder of the process that listens there."""
    socket = url.removeprefix("unix://")
    found = subprocess.run(["pgrep", "-o", "-f", socket], capture_output=True, check=True)
    return Path("/proc") / found.stdout.split()[0].decode()


def memory(process: Path) -> int:
    """Resident bytes."""
    return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(process: Path) -> int:
    return len(list((process / "fd").iterdir()))


@pytest.mark.parametrize("count", [40, pytest.param(3000, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_lifecycles_leave_nothing(
    service: SandboxClient,
    sandbox_service: str,
    template: str,
    run: Callable[..., Any],
    count: int,
) -> None:
    async def main() -> None:
        before = {info.id for info in await service.list()}
        places = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            async with places:
                await lifecycle(service, template, number)

        await asyncio.gather(*(one(number) for number in range(16)))  # what is made once
        process = service_process(sandbox_service)
        used, files = memory(process), open_files(process)
        await asyncio.gather(*(one(number) for number in range(count)))
        assert {info.id for info in await service.list()} == before
        assert memory(process) - used < GROWTH
        assert open_files(process) <= files + 8

    run(main())


async def killed_life(service: SandboxClient, template: str, number: int) -> list[str]:
    """A sandbox whose engine dies at some moment of its life; ids of all that it made."""
    way = random.Random(number)
    sandbox = await service.create(Environment(template=template), lease_s=120)

    async def kill() -> None:
        await asyncio.sleep(way.uniform(0, 1.5))
        # Where none runs it is hibernated, or between two lives.
        with suppress(AssertionError, FileNotFoundError, ProcessLookupError):
            os.kill(engine_pid(sandbox.id), signal.SIGKILL)

    killer = asyncio.create_task(kill())
    children = []
    try:
        while not killer.done():
            await sandbox.write_file("/root/number", str(number).encode())
            await sandbox.hibernate()
            children.append(await sandbox.fork())
            await sandbox.exec(["true"])
        await sandbox.exec(["true"])
    except SandboxGone as error:
        assert sandbox.id in error.cause
    except SandboxError:
        pass  # the kill hit while it was being saved or started: said, and reaped below
    finally:
        await killer
        for one in (sandbox, *children):
            await one.close()
    return [one.id for one in (sandbox, *children)]


@pytest.mark.parametrize("count", [8, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_engines_killed_at_any_moment_leave_nothing(
    service: SandboxClient, template: str, run: Callable[..., Any], count: int
) -> None:
    async def main() -> None:
        places = asyncio.Semaphore(4)

        async def one(number: int) -> list[str]:
            async with places:
                return await killed_life(service, template, number)

        lives = await asyncio.gather(*(one(number) for number in range(count)))
        ended = [sandbox_id for life in lives for sandbox_id in life]
        state = Path(service._connection.url.removeprefix("unix://")).parent / "state"
        deadline = time.monotonic() + 60
        while left := [name for one in ended for name in left_of(one, state)]:
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.1)
        sandbox = await service.create(Environment(template=template))
        assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"
        await sandbox.close()

    run(main())
