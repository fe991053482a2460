"""What a snapshot of a virtual machine consists of, on disk.

    state           devices and processors, in QEMU's own format
    map             which layer holds which page of memory
    memory-…        layers of memory, the newest written by this snapshot
    disk-…          frozen overlays of the disk
    machine.json    the hardware the state fits to, the overlays in their order

Layers and overlays that a snapshot shares with older ones are hard links to the same files, so
that every snapshot is whole and may be removed at any time.
"""

import errno
import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from journeyman.sandbox.node.qemu_command import Hardware
from journeyman.sandbox.node.qemu_disk import Disk
from journeyman.sandbox.node.qemu_memory import MemoryMap
from journeyman.types.failure import SandboxError
from journeyman.types.value import Value

STATE, MAP, _DESCRIPTION = "state", "map", "machine.json"


class SavedMachine(Value):
    hardware: Hardware
    image: str
    """File name of the disk image below the overlays."""
    overlays: tuple[str, ...]

    @classmethod
    def read(cls, snapshot: Path) -> "SavedMachine":
        try:
            return cls.model_validate_json((snapshot / _DESCRIPTION).read_bytes())
        except (OSError, ValidationError) as error:
            raise SandboxError(f"snapshot {snapshot} cannot be read: {error}") from None

    def write(self, into: Path) -> None:
        (into / _DESCRIPTION).write_text(self.model_dump_json(), encoding="utf-8")


def place_for_state(machine: Path, uid: int) -> None:
    """QEMU's user may create no file in its machine's directory, only write those made for it."""
    path = machine / "disk" / STATE
    path.touch(mode=0o600)
    os.chown(path, uid, uid)


def write_snapshot_files(machine: Path, saved: SavedMachine, memory: MemoryMap, into: Path) -> None:
    """Complete a snapshot that holds the newest layer of memory already, from a machine's
    directory with its saved state."""
    for name in memory.layers:
        if not (into / name).exists():
            link(machine / "memory" / name, into / name)
    for name in saved.overlays:
        link(machine / "disk" / name, into / name)
    memory.write(into / MAP)
    saved.write(into)
    # Copied: QEMU may still have its own open for writing.
    shutil.copyfile(machine / "disk" / STATE, into / STATE)
    (machine / "disk" / STATE).unlink()


def link(source: Path, target: Path) -> None:
    """A second name for a file that never changes; a copy where that is another file system, or
    where the file has as many names as it can have."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK):
            raise
        shutil.copyfile(source, target)
        target.chmod(0o444)


def new_machine(directory: Path) -> Path:
    """The directory that a jail sees: a place for memory and one for disks."""
    machine = directory / "machine"
    (machine / "memory").mkdir(parents=True)
    (machine / "disk").mkdir()
    for path in (machine, machine / "memory", machine / "disk"):
        path.chmod(0o755)
    return machine


def take_over(snapshot: Path, saved: SavedMachine, directory: Path) -> tuple[MemoryMap, Disk]:
    """Fill a machine's directory from a snapshot. The disk still lacks a top."""
    machine = new_machine(directory)
    memory = MemoryMap.read(snapshot / MAP, saved.hardware.memory_bytes)
    for name in (*memory.layers, MAP, STATE):
        link(snapshot / name, machine / "memory" / name)
    for name in saved.overlays:
        link(snapshot / name, machine / "disk" / name)
    return memory, Disk(machine / "disk", saved.hardware.disk_bytes, list(saved.overlays))
