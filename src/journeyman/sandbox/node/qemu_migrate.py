"""The source's side of a live migration: memory and disk are copied while the machine runs.

    overlays that are frozen      as files
    the topmost overlay           QEMU's mirror job, over NBD
    memory                        QEMU's pre-copy; pages written meanwhile are sent again

Before memory is copied the agent is asked to fall silent, so that no frame is lost: calls wait,
about a second for each GiB in use, while what runs in the guest runs on. Then the machine stops,
what is left is sent, and the target is told to go on: only that is downtime. Until the target has
everything, any failure leaves the source running.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from journeyman.sandbox.node.qemu_arrival import EXPORT, Departing
from journeyman.sandbox.node.qemu_disk import DISK_NODE, Node
from journeyman.sandbox.node.qemu_machine import QemuMachine
from journeyman.sandbox.node.qemu_monitor import Event, Monitor
from journeyman.sandbox.node.qemu_state import completed, expect_end, set_capabilities
from journeyman.sandbox.node.relay import Streams, join
from journeyman.types.failure import SandboxError

_JOB = "away"
_FASTEST_BYTES_PER_S = 10 << 30
_DISK_S = 600.0
_MEMORY_S = 300.0


class Target(Protocol):
    """The other node: an `Arrival`, or what speaks to one over a network."""

    async def copy_overlay(self, name: str, source: Path) -> None: ...

    async def start(self) -> None: ...

    async def connect_disk(self) -> Streams: ...

    async def connect_memory(self) -> Streams: ...

    async def loaded(self) -> None: ...


@dataclass(frozen=True)
class Departure:
    """How long it took. Times in seconds."""

    stopped_at: float
    """Monotonic time of this host at which the machine stopped."""
    copying_s: float
    next_number: int
    """First channel number that no command of the guest uses; for `Arrival.commit`."""


def departing(machine: QemuMachine) -> Departing:
    """What to offer a target."""
    return Departing(
        hardware=machine.hardware,
        image=machine.image,
        overlays=tuple(machine.disk.layers),
    )


async def depart(machine: QemuMachine, target: Target, *, downtime_ms: int = 40) -> Departure:
    """Copy a running machine to a target that was offered it. Afterwards it is stopped here and
    complete there; the caller decides which of the two goes on: `stay` here, or commit there.

    Raises SandboxError, with the machine running on here. Its guest needs an epoch then, as
    after a snapshot.
    """
    began = time.monotonic()
    monitor = machine.monitor
    for name in machine.disk.layers:
        await target.copy_overlay(name, machine.disk.directory / name)
    await target.start()
    try:
        async with _carried(target.connect_disk, monitor, "disk"):
            await _mirror_disk(monitor)
            async with _carried(target.connect_memory, monitor, "memory"):
                stopped_at = await _send_memory(machine, target, downtime_ms)
    except BaseException:
        await stay(machine)
        raise
    return Departure(stopped_at, time.monotonic() - began, machine.link.next_number)


async def stay(machine: QemuMachine) -> None:
    """Run on here after all. The target must have been ended before."""
    monitor = machine.monitor
    undo: list[tuple[str, Node]] = [
        ("migrate_cancel", {}),
        ("block-job-cancel", {"device": _JOB, "force": True}),
        ("cont", {}),
    ]
    for command, arguments in undo:
        with suppress(SandboxError):  # whatever had not begun
            await monitor.execute(command, **arguments)


@asynccontextmanager
async def _carried(
    connect: Callable[[], Awaitable[Streams]], monitor: Monitor, name: str
) -> AsyncIterator[None]:
    """A connection of QEMU's, called `name`, whose other end is the target's."""
    away = await connect()
    ours, theirs = socket.socketpair()
    here = await asyncio.open_connection(sock=ours)
    carrying = asyncio.create_task(join(here, away), name=f"{name} of {monitor.name}")
    try:
        with theirs:
            await monitor.give(name, theirs.fileno())
        yield
    finally:
        carrying.cancel()
        with suppress(asyncio.CancelledError):
            await carrying


async def _mirror_disk(monitor: Monitor) -> None:
    """Until both disks are the same; from then on every write goes to both."""
    server = {"type": "fd", "str": "disk"}
    await monitor.execute(
        "blockdev-add", driver="nbd", node_name=_JOB, server=server, export=EXPORT
    )
    ready = monitor.expect(lambda event: _of_job(event, "BLOCK_JOB_READY", "BLOCK_JOB_COMPLETED"))
    mirror: Node = {"job_id": _JOB, "device": DISK_NODE, "target": _JOB, "sync": "top"}
    await monitor.execute("blockdev-mirror", **mirror)
    async with asyncio.timeout(_DISK_S):
        event = await ready
    if event["event"] != "BLOCK_JOB_READY":
        raise SandboxError(f"QEMU could not copy the disk: {event['data'].get('error')}")


def _of_job(event: Event, *names: str) -> bool:
    return event.get("event") in names and event.get("data", {}).get("device") == _JOB


async def _send_memory(machine: QemuMachine, target: Target, downtime_ms: int) -> float:
    """Returns when the machine stopped."""
    monitor = machine.monitor
    wanted = {"x-ignore-shared": False, "pause-before-switchover": True, "events": True}
    await set_capabilities(monitor, wanted)
    await monitor.execute(
        "migrate-set-parameters", max_bandwidth=_FASTEST_BYTES_PER_S, downtime_limit=downtime_ms
    )
    stopped = monitor.expect(lambda event: _is_status(event, "pre-switchover", "failed"))
    gone = expect_end(monitor)
    await machine.link.quiesce()
    await monitor.execute("migrate", uri="fd:memory")
    async with asyncio.timeout(_MEMORY_S):
        event = await stopped
    if event["data"]["status"] == "failed":
        raise SandboxError("QEMU could not send the machine's memory")
    stopped_at = time.monotonic()
    done = monitor.expect(lambda event: _of_job(event, "BLOCK_JOB_COMPLETED"))
    await monitor.execute("block-job-cancel", device=_JOB)  # of a mirror in step: its orderly end
    if problem := (await done)["data"].get("error"):
        raise SandboxError(f"QEMU could not copy the last of the disk: {problem}")
    await monitor.execute("migrate-continue", state="pre-switchover")
    await completed(gone, "send the machine")
    await target.loaded()
    return stopped_at


def _is_status(event: Event, *statuses: str) -> bool:
    return event.get("event") == "MIGRATION" and event.get("data", {}).get("status") in statuses
