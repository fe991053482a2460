"""What a sandbox engine must do for us. One module per engine implements `Driver`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from journeyman.sandbox.node.link import GuestLink
from journeyman.sandbox.node.memory_watch import MemoryWatch
from journeyman.types.value import Value


class Limits(Value):
    """What one sandbox may use of its host."""

    memory_bytes: int = 1 << 30
    """Guest memory, and files where those live in memory (gvisor)."""
    disk_bytes: int = 4 << 30
    """Files, where the guest has a disk (qemu); what the image holds included."""
    processes: int = 256
    open_files: int = 4096
    tmp_bytes: int = 256 << 20
    disk_bytes_per_s: int = 400 << 20
    """Read and written together, where the guest has a disk; 0 is unlimited."""
    disk_operations_per_s: int = 20_000
    cpus: float = 2.0


@dataclass(frozen=True)
class MachineSpec:
    """What to start. `directory` is the sandbox's own, created and removed by the caller."""

    id: str
    directory: Path
    rootfs: Path
    agent: str
    """Guest path of the agent inside the root file system."""
    limits: Limits
    stands_still: bool = False
    """Nothing in it runs between calls, where the driver can do that."""


def agent_arguments(spec: MachineSpec) -> list[str]:
    """The agent's command line; see `guest/main.c`."""
    limits = spec.limits
    numbers = (limits.processes, limits.open_files, limits.memory_bytes)
    return [spec.agent, *(str(number) for number in numbers)]


@dataclass
class Machine:
    """A running sandbox process with a live guest."""

    id: str
    link: GuestLink
    pid: int
    """Of the process whose end is the sandbox's end."""
    pidfd: int
    watch: MemoryWatch | None = None


class Driver(Protocol):
    """Start, snapshot, restore, end. Nothing here knows of leases, templates or HTTP."""

    name: str
    isolation: str
    """One sentence for people: what separates the guest from the host."""
    snapshots_memory: bool
    """Whether running processes survive `snapshot` and `restore`."""
    enforced: tuple[str, ...]
    """Which limits hold on this machine."""
    fingerprint: str
    """Snapshots run only where this is the same. Known after `probe`."""

    async def probe(self) -> None:
        """Raises UserError with the line that cures it when this engine cannot run here."""
        ...

    async def boot(self, spec: MachineSpec) -> Machine:
        """Start from the root file system. The guest still needs its first epoch."""
        ...

    async def snapshot(self, machine: Machine, spec: MachineSpec, into: Path) -> None:
        """Write the whole state of a quiesced guest below `into`, which exists and is empty."""
        ...

    async def restore(self, spec: MachineSpec, snapshot: Path, first_number: int) -> Machine:
        """Start a second life from a snapshot, which stays as it is."""
        ...

    def kill(self, machine: Machine) -> None:
        """End it at once without waiting. Idempotent."""
        ...

    def exhausted(self, spec: MachineSpec) -> list[str]:
        """Limits that a sandbox which has ended had run into; known until it is collected."""
        ...

    async def collect(self, specs: Sequence[MachineSpec]) -> None:
        """Free what ended sandboxes left with the engine and the kernel. Off the critical path;
        also called for sandboxes of an earlier life of the service."""
        ...
