"""Saving and loading a machine's state over its monitor: devices and processors, without memory
and disk."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from journeyman.sandbox.node.qemu_monitor import Event, Monitor
from journeyman.types.failure import SandboxError

_SECONDS = 60.0


async def begin(monitor: Monitor) -> None:
    """After a first start, where there is nothing to load."""
    await asyncio.gather(monitor.post("qmp_capabilities"), _leave_memory_out(monitor))


async def load_state(monitor: Monitor, path: str) -> None:
    """Let a machine that waits for it go on from a saved state. Raises SandboxError."""
    loaded = expect_end(monitor)
    # In one go: each answer would cost a turn of two busy processes.
    await asyncio.gather(
        monitor.post("qmp_capabilities"),
        _leave_memory_out(monitor),
        monitor.post("migrate-incoming", uri=f"file:{path}"),
    )
    await completed(loaded, "load its saved state")


async def save_state(monitor: Monitor, path: str) -> None:
    """Of a stopped machine. Raises SandboxError."""
    saved = expect_end(monitor)
    # Again: a machine that has migrated was asked to send its memory.
    begun = _leave_memory_out(monitor), monitor.post("migrate", uri=f"file:{path}")
    await asyncio.gather(*begun)
    await completed(saved, "save its state")


def _leave_memory_out(monitor: Monitor) -> "asyncio.Future[Any]":
    wanted = {"x-ignore-shared": True, "pause-before-switchover": False, "events": True}
    return set_capabilities(monitor, wanted)


def set_capabilities(monitor: Monitor, wanted: Mapping[str, bool]) -> "asyncio.Future[Any]":
    """Of states on their way in or out."""
    states = [{"capability": name, "state": state} for name, state in wanted.items()]
    return monitor.post("migrate-set-capabilities", capabilities=states)


def expect_end(monitor: Monitor) -> "asyncio.Future[Event]":
    """Of a state's way out or in; ask before it begins, and wait with `completed`."""
    return monitor.expect(_is_over)


def _is_over(event: Event) -> bool:
    status = event.get("data", {}).get("status")
    return event.get("event") == "MIGRATION" and status in ("completed", "failed")


async def completed(outcome: "asyncio.Future[Event]", what: str) -> None:
    """Raises SandboxError when it failed or takes too long."""
    try:
        async with asyncio.timeout(_SECONDS):
            event = await outcome
    except TimeoutError:
        raise SandboxError(f"QEMU took over {_SECONDS:g} s to {what}") from None
    if event["data"]["status"] != "completed":
        raise SandboxError(f"QEMU could not {what}")


async def memory_address(monitor: Monitor) -> int:
    """Where the guest's memory begins in QEMU's process. Raises SandboxError."""
    said = await monitor.execute("human-monitor-command", command_line="gpa2hva 0")
    found = re.search(r"is (0x[0-9a-f]+)\s*$", str(said))
    if not found:
        raise SandboxError(f"QEMU does not tell where its guest's memory is: {said!r}")
    return int(found[1], 16)
