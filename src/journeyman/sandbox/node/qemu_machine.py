"""One QEMU process: starting it in its jail, and noticing that its machine has stopped."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from journeyman.sandbox.node.driver import Machine, MachineSpec
from journeyman.sandbox.node.link import GuestLink
from journeyman.sandbox.node.process import kill_pidfd, spawn_engine
from journeyman.sandbox.node.qemu_command import CONSOLE, Hardware, Inherited
from journeyman.sandbox.node.qemu_disk import Disk
from journeyman.sandbox.node.qemu_memory import MemoryMap
from journeyman.sandbox.node.qemu_monitor import MAX_LINE_BYTES, Event, Monitor
from journeyman.sandbox.wire.frames import CHUNK_BYTES
from journeyman.types.failure import SandboxError

_START_S = 60.0


@dataclass(frozen=True)
class Engine:
    """A QEMU process that answers."""

    jail: asyncio.subprocess.Process
    """bubblewrap, which waits for QEMU. Kept: a forgotten one would be killed."""
    pid: int
    pidfd: int
    monitor: Monitor
    link: GuestLink


@dataclass
class QemuMachine(Machine):
    """A running virtual machine."""

    engine: Engine = field(kw_only=True)
    hardware: Hardware = field(kw_only=True)
    image: str = field(kw_only=True)
    """File name of the disk image below the overlays."""
    memory: MemoryMap = field(kw_only=True)
    """What its memory was mapped from; what it has changed since is private to its process."""
    disk: Disk = field(kw_only=True)

    @property
    def monitor(self) -> Monitor:
        return self.engine.monitor

    def end(self) -> None:
        """At once. Idempotent."""
        self.link.close()
        self.monitor.close()
        if self.pidfd >= 0:
            kill_pidfd(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1


async def launch(
    spec: MachineSpec,
    command: Callable[[Inherited], Sequence[str]],
    *,
    groups: Sequence[Path],
    file_bytes: int,
    first_number: int,
    kvm: bool,
) -> Engine:
    """Start QEMU and wait until it answers on its monitor. Raises SandboxError with its words."""
    log = spec.directory / "engine.log"
    with ExitStack() as opened:
        monitor, their_monitor = _pair(opened)
        port, their_port = _pair(opened)
        inherited = Inherited(
            their_monitor.fileno(), their_port.fileno(), _open_kvm(opened) if kvm else None
        )
        jail = await spawn_engine(
            command(inherited),
            groups=groups,
            log=log,
            inherited=inherited.descriptors(),
            file_bytes=file_bytes,
        )
        link_streams = await asyncio.open_connection(sock=port.dup(), limit=4 * CHUNK_BYTES)
        streams = await asyncio.open_connection(sock=monitor.dup(), limit=MAX_LINE_BYTES)
    link = GuestLink(spec.id, *link_streams, first_number)
    ending = _Ending(link, spec.directory)
    talk = ending.monitor = Monitor(spec.id, *streams, ending.notice)
    try:
        await talk.greeted(_START_S)
        pid = _engine_pid(jail.pid)
        return Engine(jail, pid, os.pidfd_open(pid), talk, link)
    except BaseException as error:
        link.close()
        talk.close()
        with suppress(ProcessLookupError):
            jail.kill()
        await jail.wait()
        if isinstance(error, SandboxError | OSError):
            raise SandboxError(f"QEMU did not start {spec.id}: {last_words(log)}") from None
        raise


def _pair(opened: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    opened.callback(ours.close)
    opened.callback(theirs.close)
    return ours, theirs


def _open_kvm(opened: ExitStack) -> int:
    descriptor = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor


def last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-2000:] or "no message"


def _engine_pid(jail: int) -> int:
    """QEMU is below two processes of its jail: one outside that waits, and the first inside."""
    pid = jail
    for _ in range(2):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        if len(children) != 1:
            raise SandboxError(f"the jail's process {pid} has {len(children)} children, not one")
        pid = int(children[0])
    return pid


OUT_OF_MEMORY = "out-of-memory"
"""A file in the directory of a sandbox whose kernel had no process left to end."""


class _Ending:
    """Notices that a machine has stopped by itself, and breaks its link off with the reason."""

    def __init__(self, link: GuestLink, directory: Path) -> None:
        self._link = link
        self._directory = directory
        self.monitor: Monitor | None = None
        self._task: asyncio.Task[None] | None = None

    def notice(self, event: Event) -> None:
        if event.get("event") in ("SHUTDOWN", "GUEST_PANICKED") and self._task is None:
            self._task = asyncio.create_task(self._tell(), name=f"end of {self._link.name}")

    async def _tell(self) -> None:
        cause = "its machine stopped by itself"
        if self.monitor is not None:
            with suppress(SandboxError):
                said = await self.monitor.execute("ringbuf-read", device=CONSOLE, size=16 << 10)
                cause = _panic(str(said)) or cause
        if "memory" in cause:
            (self._directory / OUT_OF_MEMORY).touch()
        self._link.break_off(cause)


def _panic(console: str) -> str:
    """The kernel's own words and our first program's, from what the guest printed last."""
    said = [line.partition("journeyman: ")[2] for line in console.splitlines()]
    for line in console.splitlines():
        _, found, reason = line.partition("Kernel panic - not syncing: ")
        if found:
            words = "; ".join([*filter(None, said), reason.strip()])
            return f"its kernel panicked: {words[:300]}"
    return ""
