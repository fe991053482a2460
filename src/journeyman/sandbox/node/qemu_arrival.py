"""The target's side of a live migration: a machine that is filled while its source still runs.

It stays stopped until `commit`: whoever owns the sandbox decides when that is, and until then the
source is the only one that runs.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from journeyman.sandbox.node.qemu_command import Hardware
from journeyman.sandbox.node.qemu_disk import Disk, Node
from journeyman.sandbox.node.qemu_machine import QemuMachine
from journeyman.sandbox.node.qemu_memory import MemoryMap
from journeyman.sandbox.node.qemu_monitor import Event
from journeyman.sandbox.node.qemu_snapshot import new_machine
from journeyman.sandbox.node.qemu_state import completed, expect_end, set_capabilities
from journeyman.sandbox.node.relay import Streams
from journeyman.types.failure import SandboxError
from journeyman.types.value import Value

EXPORT = "disk"


class Departing(Value):
    """What a target must know of a machine before it starts one for it."""

    hardware: Hardware
    image: str
    overlays: tuple[str, ...]
    """Frozen ones, oldest first; they are copied as files."""


Launch = Callable[[MemoryMap, Disk], Awaitable[QemuMachine]]


class Arrival:
    """One machine on its way in."""

    def __init__(self, departing: Departing, directory: Path, launch: Launch) -> None:
        self._departing = departing
        self._launch = launch
        files = new_machine(directory) / "disk"
        self._disk = Disk(files, departing.hardware.disk_bytes, list(departing.overlays))
        self._machine: QemuMachine | None = None
        self._disk_address = b""
        self._loaded: asyncio.Future[Event] | None = None

    def place_of(self, overlay: str) -> Path:
        """Where a frozen overlay is to be copied. Raises SandboxError for any other name."""
        if overlay not in self._departing.overlays:
            raise SandboxError(f"the machine that arrives has no overlay {overlay!r}")
        return self._disk.directory / overlay

    async def start(self) -> None:
        """Once every overlay is there. Raises SandboxError."""
        for name in self._departing.overlays:
            path = self.place_of(name)
            os.chmod(path, 0o444)
        self._disk.fill_top()
        memory = MemoryMap.empty(self._departing.hardware.memory_bytes)
        self._machine = await self._launch(memory, self._disk)
        monitor = self._machine.monitor
        await monitor.execute("qmp_capabilities")
        await set_capabilities(monitor, {"events": True})
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("")  # Linux finds a free name, which vanishes with the socket
            listener.listen(1)
            self._disk_address = listener.getsockname()
            await monitor.give("disk", listener.fileno())
        await monitor.execute("nbd-server-start", addr={"type": "fd", "data": {"str": "disk"}})
        export: Node = {"type": "nbd", "id": EXPORT, "name": EXPORT, "writable": True}
        await monitor.execute("block-export-add", **export, node_name=self._disk.top)

    async def connect_disk(self) -> Streams:
        """To its NBD server. Raises SandboxError before `start`."""
        self.machine()
        with socket.socket(socket.AF_UNIX) as ours:
            ours.setblocking(False)
            await asyncio.get_running_loop().sock_connect(ours, self._disk_address)
            return await asyncio.open_connection(sock=ours.dup())

    async def connect_memory(self) -> Streams:
        """To what reads the saved state and memory."""
        monitor = self.machine().monitor
        ours, theirs = socket.socketpair()
        with theirs:
            await monitor.give("memory", theirs.fileno())
        self._loaded = expect_end(monitor)
        await monitor.execute("migrate-incoming", uri="fd:memory")
        return await asyncio.open_connection(sock=ours)

    async def loaded(self) -> None:
        """Wait until everything is here. The machine is stopped. Raises SandboxError."""
        if self._loaded is None:
            raise SandboxError("nothing of the machine that arrives is on its way")
        await completed(self._loaded, "take in the machine that arrives")
        await self.machine().monitor.execute("nbd-server-stop")

    async def commit(self, next_number: int) -> QemuMachine:
        """It runs from here on. Its guest still needs its next epoch."""
        machine = self.machine()
        machine.link.next_number = next_number
        await machine.monitor.execute("cont")
        return machine

    def abort(self) -> None:
        """Idempotent; its directory is the caller's to remove."""
        if self._machine:
            self._machine.end()

    def machine(self) -> QemuMachine:
        """Raises SandboxError before `start`."""
        if self._machine is None:
            raise SandboxError("the machine that arrives has not been started")
        return self._machine
