"""How busy this machine is."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from journeyman.sandbox.fleet.node import Capacity

_PROC = Path("/proc")


class Usage(NamedTuple):
    """CPUs busy on average since the last look; bytes in use."""

    cpus_used: float
    memory_used_bytes: int
    disk_used_bytes: int


class Machine:
    """Looks at all that runs here, not only at sandboxes: what others use cannot be given away."""

    def __init__(self, state: Path) -> None:
        """`state` lies on the disk that is measured."""
        self._state = state
        self._before = _busy_s()

    def capacity(self, keep: float = 0.1) -> Capacity:
        """What the machine has, less the part `keep` of its memory and disk."""
        disk = os.statvfs(self._state)
        memory = _memory()
        return Capacity(
            cpus=float(len(os.sched_getaffinity(0))),
            memory_bytes=int(memory["MemTotal"] * (1 - keep)),
            disk_bytes=int(disk.f_blocks * disk.f_frsize * (1 - keep)),
        )

    def look(self) -> Usage:
        before, self._before = self._before, _busy_s()
        passed = max(1e-3, self._before[0] - before[0])
        memory, disk = _memory(), os.statvfs(self._state)
        return Usage(
            cpus_used=max(0.0, (self._before[1] - before[1]) / passed),
            memory_used_bytes=memory["MemTotal"] - memory["MemAvailable"],
            disk_used_bytes=(disk.f_blocks - disk.f_bavail) * disk.f_frsize,
        )


def _busy_s() -> tuple[float, float]:
    """Now, and the CPU-seconds that were not idle so far."""
    fields = (_PROC / "stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, *interrupts = map(int, fields[:8])
    ticks = user + nice + system + sum(interrupts)
    return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK")


def _memory() -> dict[str, int]:
    lines = (_PROC / "meminfo").read_text().splitlines()
    pairs = (line.split(":") for line in lines)
    return {name: int(rest.split()[0]) << 10 for name, rest in pairs}
