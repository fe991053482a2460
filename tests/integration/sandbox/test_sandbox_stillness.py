"""Sandboxes that stand still between calls: they cost nothing and lose nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines import engine_pid

from journeyman.sandbox.client import SandboxClient
from journeyman.types import Environment


def processor_s(sandbox_id: str) -> float:
    """Seconds that the sandbox's own kernel has used."""
    fields = Path(f"/proc/{engine_pid(sandbox_id)}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


COUNT = "while true; do printf x >> /tmp/count; sleep 0.01; done"
"""The count is the file's length: a write that is stopped half-way leaves no empty file."""


def test_nothing_runs_between_calls_and_everything_goes_on_with_the_next(
    service: SandboxClient, template: str, run: Callable[..., Any]
) -> None:
    async def main() -> None:
        environment = Environment(template=template, stands_still=True)
        sandbox = await service.create(environment, lease_s=120)
        try:
            await sandbox.exec(["sh", "-c", f"({COUNT}) >/dev/null 2>&1 & sleep 0.3"])
            await asyncio.sleep(0.5)
            before = processor_s(sandbox.id)
            await asyncio.sleep(2.0)
            assert processor_s(sandbox.id) - before <= 0.01
            first = len(await sandbox.read_file("/tmp/count"))
            assert first > 3
            moved = await sandbox.exec(["sh", "-c", "sleep 0.5; cat /tmp/count"])
            assert len(moved.stdout) > first
        finally:
            await sandbox.close()

    run(main())


def test_one_that_stands_still_can_be_forked_hibernated_and_closed(
    service: SandboxClient, template: str, run: Callable[..., Any]
) -> None:
    async def main() -> None:
        environment = Environment(template=template, stands_still=True)
        sandbox = await service.create(environment, lease_s=120)
        await sandbox.write_file("/app/a", b"1")
        await asyncio.sleep(0.3)
        child = await sandbox.fork()
        await asyncio.sleep(0.3)
        await sandbox.hibernate()
        await sandbox.resume()
        await asyncio.sleep(0.3)
        assert await sandbox.read_file("/app/a") == b"1"
        assert await child.read_file("/app/a") == b"1"
        await asyncio.sleep(0.3)
        await child.close()
        await sandbox.close()
        assert {info.id for info in await service.list()}.isdisjoint({child.id, sandbox.id})

    run(main())


def test_others_keep_running_between_calls(
    service: SandboxClient, template: str, run: Callable[..., Any]
) -> None:
    async def main() -> None:
        sandbox = await service.create(Environment(template=template), lease_s=120)
        try:
            await sandbox.exec(["sh", "-c", f"({COUNT}) >/dev/null 2>&1 & sleep 0.3"])
            first = len(await sandbox.read_file("/tmp/count"))
            await asyncio.sleep(1.0)
            assert len(await sandbox.read_file("/tmp/count")) > first + 5
        finally:
            await sandbox.close()

    run(main())
