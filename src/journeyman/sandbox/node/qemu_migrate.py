"""The source's side of a live migration: memory and disk are copied while the machine runs.

    overlays that are frozen      as files
    the topmost overlay           QEMU's mirror job, over NBD
    memory                        QEMU's pre-copy; pages written meanwhile are sent again

Near the end the agent is asked to fall silent, so that no frame is lost; then the machine stops,
what is left is sent, and the target is told to go on. The stop is the only downtime. Until the
target has everything, any failure leaves the source running.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from journeyman.sandbox.node.link import GuestLink
from journeyman.sandbox.node.qemu_arrival import EXPORT, Departing, Streams
from journeyman.sandbox.node.qemu_disk import DISK_NODE, Node
from journeyman.sandbox.node.qemu_machine import QemuMachine
from journeyman.sandbox.node.qemu_monitor import Event, Monitor
from journeyman.sandbox.node.qemu_state import completed, expect_end
from journeyman.sandbox.wire.frames import FrameKind
from journeyman.types.failure import SandboxError

_JOB = "away"
_CHUNK_BYTES = 256 << 10
_FASTEST_BYTES_PER_S = 10 << 30
_ONE_PAGE = {"downtime_limit": 1, "avail_switchover_bandwidth": 4096 * 1000}
"""QEMU stops a machine when what is left could be sent within the downtime at that bandwidth: here
never, as long as its guest writes more than a page at a time."""
_FEW_BYTES = 8 << 20
"""With so little left to send, or after `_ROUNDS` passes over memory, the end begins."""
_ROUNDS = 8
_LOOK_EVERY_S = 0.02
_DISK_S = 600.0
_SWITCH_S = 30.0


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


def departing(machine: QemuMachine, next_number: int) -> Departing:
    return Departing(
        hardware=machine.hardware,
        image=machine.image,
        overlays=tuple(machine.disk.layers),
        next_number=next_number,
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
    return Departure(stopped_at, time.monotonic() - began)


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
    with theirs:
        await monitor.give(name, theirs.fileno())
    here = await asyncio.open_connection(sock=ours, limit=_CHUNK_BYTES)
    pumps = [
        asyncio.create_task(_pump(here[0], away[1]), name=f"{name} of {monitor.name} out"),
        asyncio.create_task(_pump(away[0], here[1]), name=f"{name} of {monitor.name} in"),
    ]
    try:
        yield
    finally:
        for pump in pumps:
            pump.cancel()
        for writer in (here[1], away[1]):
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


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
    states = [{"capability": name, "state": state} for name, state in wanted.items()]
    await monitor.execute("migrate-set-capabilities", capabilities=states)
    fast = {"max_bandwidth": _FASTEST_BYTES_PER_S}
    await monitor.execute("migrate-set-parameters", **fast, **_ONE_PAGE)
    stopped = monitor.expect(lambda event: _is_status(event, "pre-switchover", "failed"))
    gone = expect_end(monitor)
    await monitor.execute("migrate", uri="fd:memory")
    async with _busy(machine.link):
        await _until_little_is_left(monitor, stopped)
    if stopped.done():
        raise SandboxError("the machine stopped before its agent could be told: try again")
    await machine.link.quiesce()
    end = {"downtime_limit": downtime_ms, "avail_switchover_bandwidth": 0}
    await monitor.execute("migrate-set-parameters", **end)
    async with asyncio.timeout(_SWITCH_S):
        event = await stopped
    if event["data"]["status"] == "failed":
        raise SandboxError("QEMU could not send the machine's memory")
    stopped_at = time.monotonic()
    done = monitor.expect(lambda event: _of_job(event, "BLOCK_JOB_COMPLETED"))
    await monitor.execute("block-job-cancel", device=_JOB)  # of a mirror in step: its orderly end
    await done
    await monitor.execute("migrate-continue", state="pre-switchover")
    await completed(gone, "send the machine")
    await target.loaded()
    return stopped_at


@asynccontextmanager
async def _busy(link: GuestLink) -> AsyncIterator[None]:
    """The guest writes memory all the time, so that QEMU finds no moment to stop it."""

    async def talk() -> None:
        with suppress(SandboxError):
            while True:
                with link.channel() as channel:
                    await channel.send(FrameKind.LIST_EXECS)
                    while (await channel.receive()).kind is not FrameKind.END:
                        pass

    task = asyncio.create_task(talk(), name=f"talk with {link.name}")
    try:
        yield
    finally:
        task.cancel()


def _is_status(event: Event, *statuses: str) -> bool:
    return event.get("event") == "MIGRATION" and event.get("data", {}).get("status") in statuses


async def _until_little_is_left(monitor: Monitor, stopped: "asyncio.Future[Event]") -> None:
    while not stopped.done():
        ram = (await monitor.execute("query-migrate")).get("ram", {})
        rounds = ram.get("dirty-sync-count", 0)
        if rounds > _ROUNDS or (rounds > 1 and ram.get("remaining", 0) < _FEW_BYTES):
            return
        await asyncio.sleep(_LOOK_EVERY_S)
