"""Ending a guest's biggest process before the kernel would end the whole sandbox.

The kernel's own answer to a full control group is to kill the sandbox's kernel process. Where it
can tell us that a group fills up (memory controller version 1, by eventfd), the agent inside is
asked to end one process instead, and goes on answering.
"""

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path

from journeyman.sandbox.node.link import GuestFileError, GuestLink
from journeyman.sandbox.wire.frames import FrameKind, u64
from journeyman.types.failure import SandboxGone

log = logging.getLogger(__name__)
_FULL = 0.90
"""From here on a process holding an eighth of the limit is ended."""
_VERY_FULL = 0.97
"""From here on the biggest process is ended whatever its size, while the group still grows:
somebody fills the memory with files. Once it stands still, small commands can clean up."""
_GROWTH_BYTES = 4 << 20
"""Between two looks; less may be a command that starts."""
_LOOK_EVERY_S = 0.1


class MemoryWatch:
    """Watches one group for the life of one link."""

    def __init__(self, group: Path, limit_bytes: int, overhead_bytes: int, link: GuestLink) -> None:
        """`overhead_bytes` is what the engine itself may be expected to hold in the group."""
        self._usage = group / "memory.usage_in_bytes"
        self._limit_bytes = limit_bytes
        self._overhead_bytes = overhead_bytes
        self._link = link
        self._task: asyncio.Task[None] | None = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        threshold = int(limit_bytes * _FULL) + overhead_bytes
        usage = os.open(self._usage, os.O_RDONLY | os.O_CLOEXEC)
        try:
            control = f"{self._event} {usage} {threshold}"
            (group / "cgroup.event_control").write_text(control, encoding="ascii")
        finally:
            os.close(usage)
        asyncio.get_running_loop().add_reader(self._event, self._notice)

    def close(self) -> None:
        """Idempotent."""
        if self._event < 0:
            return
        asyncio.get_running_loop().remove_reader(self._event)
        os.close(self._event)
        self._event = -1
        if self._task:
            self._task.cancel()

    def _notice(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._relieve(), name=f"memory of {self._link.name}")

    def _guest_bytes(self) -> int:
        return int(self._usage.read_text(encoding="ascii")) - self._overhead_bytes

    async def _relieve(self) -> None:
        try:
            before = self._guest_bytes()  # an event may come from a fall as well
            while (used := self._guest_bytes()) > _FULL * self._limit_bytes:
                grows = used - before > _GROWTH_BYTES
                before = used
                filling = grows and used > _VERY_FULL * self._limit_bytes
                least = 0 if filling else self._limit_bytes // 8
                answer = await self._link.request(FrameKind.RELIEVE, u64(least))
                if pid := answer.u32():
                    log.warning(
                        "sandbox %s was out of memory: its process %d with %d MB was ended",
                        *(self._link.name, pid, answer.u64() >> 20),
                    )
                await asyncio.sleep(_LOOK_EVERY_S)
        except (SandboxGone, GuestFileError, FileNotFoundError):
            return  # it ended meanwhile


def watch_memory(
    group: Path | None, limit_bytes: int, overhead_bytes: int, link: GuestLink
) -> MemoryWatch | None:
    """None where this kernel has no such events; the hard limit of the group holds all the same."""
    if group is None or not (group / "cgroup.event_control").exists():
        return None
    try:
        return MemoryWatch(group, limit_bytes, overhead_bytes, link)
    except OSError as error:
        log.info("no memory events from %s: %s", group, error)
        return None
