"""QEMU: a virtual machine for each sandbox, on KVM where a guest really boots, else emulated.

A fork is a second QEMU that goes on from a saved state, with memory and disk mapped copy-on-write
from the same files (`qemu_memory.py`, `qemu_disk.py`). So parents keep running, every snapshot
holds only what changed, and each kind of machine boots only once (`qemu_boot.py`).
"""

import asyncio
import logging
import math
import os
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.sandbox.node.cgroups import ControlGroups
from journeyman.sandbox.node.driver import Limits, Machine, MachineSpec, agent_arguments
from journeyman.sandbox.node.native_build import PRELOADED, compile_c
from journeyman.sandbox.node.qemu_accelerator import choose_accelerator, processor_digest
from journeyman.sandbox.node.qemu_arrival import Arrival, Departing
from journeyman.sandbox.node.qemu_boot import FirstStart, boot_into, booted_path
from journeyman.sandbox.node.qemu_command import (
    OLDEST_QEMU,
    Hardware,
    Inherited,
    Rates,
    arriving_life,
    command_digest,
    command_line,
    first_start,
    later_life,
    qemu_version,
)
from journeyman.sandbox.node.qemu_disk import Disk, disk_nodes
from journeyman.sandbox.node.qemu_image import build_image
from journeyman.sandbox.node.qemu_jail import IMAGE, MACHINE, jail_uid, jailed
from journeyman.sandbox.node.qemu_kernel import kernel_with_initramfs, require_kernel
from journeyman.sandbox.node.qemu_machine import OUT_OF_MEMORY, QemuMachine, launch
from journeyman.sandbox.node.qemu_memory import MemoryMap, save_memory
from journeyman.sandbox.node.qemu_snapshot import (
    STATE,
    SavedMachine,
    new_machine,
    place_for_state,
    take_over,
    write_snapshot_files,
)
from journeyman.sandbox.node.qemu_state import begin, load_state, memory_address, save_state
from journeyman.sandbox.node.snapshots import SnapshotReader
from journeyman.sandbox.node.stillness import Stillness
from journeyman.types.failure import SandboxError, UserError

log = logging.getLogger(__name__)
_QEMU_BYTES = 448 << 20
"""What QEMU itself may need beside the guest's memory."""
_QEMU_THREADS = 128
LAYERS_SOURCE = Path(__file__).parent / "qemu_layers.c"
_ISOLATION = {
    "kvm": "a virtual machine on KVM: VM-level isolation, held by the processor",
    "tcg": "an emulated machine with its own kernel (QEMU's TCG): not held by the processor",
}
_DISKS = f"{MACHINE}/disk"


class QemuDriver:
    """Needs root, QEMU, bubblewrap, and the kernel that set-up unpacked."""

    name = "qemu"
    snapshots_memory = True

    def __init__(self) -> None:
        self._groups = ControlGroups()
        self._groups.sweep()
        inside = ("memory", "processes", "open_files", "tmp", "disk", "disk_rate")
        self.enforced = tuple(dict.fromkeys((*self._groups.enforced, *inside)))
        self.fingerprint = ""
        self.isolation = "QEMU, not yet probed"
        self.accelerator = ""
        self._layers = Path()
        self._reader = SnapshotReader()
        self._booting = asyncio.Lock()

    async def probe(self) -> None:
        """See whether the engine is here at all; `node.probe` then starts a sandbox."""
        cure = "Run as root: make setup DRIVER=qemu"
        if platform.machine() != "x86_64":
            raise UserError(f"the qemu driver runs on x86_64, not on {platform.machine()}")
        if os.geteuid() != 0:
            raise UserError("the qemu driver needs root", cure)
        for program in ("qemu-system-x86_64", "qemu-img", "bwrap", "setpriv", "mkfs.ext4"):
            if shutil.which(program) is None:
                raise UserError(f"the qemu driver needs {program!r}", cure)
        await asyncio.to_thread(require_kernel)
        found = await asyncio.to_thread(qemu_version)
        version = ".".join(str(part) for part in found)
        if found < OLDEST_QEMU:
            raise UserError(f"the qemu driver needs QEMU 9.1 or newer, this is {version}", cure)
        self._layers = compile_c("qemu-layers", LAYERS_SOURCE, PRELOADED, ("gcc", "cc"))
        self.accelerator = await asyncio.to_thread(choose_accelerator, version)
        self.isolation = _ISOLATION[self.accelerator]
        processor = f" {processor_digest()}" if self.accelerator == "kvm" else ""
        self.fingerprint = f"{version} {self.accelerator}{processor} {command_digest()}"

    # ---- lives

    async def boot(self, spec: MachineSpec) -> Machine:
        """A fork of a machine that has booted."""
        booted = await self._booted(spec)
        manifest = await self._reader.check(booted, self.name, self.fingerprint)
        return await self.restore(spec, booted, manifest.next_number)

    async def restore(self, spec: MachineSpec, snapshot: Path, first_number: int) -> Machine:
        saved = SavedMachine.read(snapshot)
        try:
            memory, disk = await asyncio.to_thread(take_over, snapshot, saved, spec.directory)
        except OSError as error:
            raise SandboxError(f"cannot prepare the machine of {spec.id}: {error}") from None
        machine = await self._start(
            spec, saved.hardware, memory, disk, saved.image, later_life(), first_number
        )
        try:
            await load_state(machine.monitor, f"{MACHINE}/memory/{STATE}")
        except BaseException:
            self.kill(machine)
            raise
        if spec.stands_still:
            machine.link.stand_still(Stillness(machine.pidfd))
        return machine

    async def _start(
        self,
        spec: MachineSpec,
        hardware: Hardware,
        memory: MemoryMap,
        disk: Disk,
        image: str,
        life: Sequence[str],
        first_number: int = 1,
        kernel: Path | None = None,
    ) -> QemuMachine:
        uid = jail_uid(spec.id)
        await disk.add_top(uid)
        limits = spec.limits
        rates = Rates(
            bytes_per_s=limits.disk_bytes_per_s, operations_per_s=limits.disk_operations_per_s
        )
        nodes = disk_nodes(disk, IMAGE, _DISKS)

        def command(inherited: Inherited) -> list[str]:
            return jailed(
                [*command_line(hardware, nodes, rates, inherited), *life],
                uid=uid,
                machine=spec.directory / "machine",
                image=home_dir() / "qemu" / image,
                layers=self._layers,
                kernel=kernel,
            )

        groups = self._groups.create(
            spec.id,
            memory_bytes=hardware.memory_bytes + _QEMU_BYTES,
            processes=_QEMU_THREADS,
            cpus=limits.cpus,
        )
        kvm = self.accelerator == "kvm"
        engine = await launch(
            spec,
            command,
            groups=groups,
            file_bytes=2 * hardware.disk_bytes,
            first_number=first_number,
            kvm=kvm,
        )
        return QemuMachine(
            spec.id,
            engine.link,
            engine.pid,
            engine.pidfd,
            engine=engine,
            hardware=hardware,
            image=image,
            memory=memory,
            disk=disk,
        )

    async def snapshot(self, machine: Machine, spec: MachineSpec, into: Path) -> None:
        assert isinstance(machine, QemuMachine)
        monitor, files, uid = machine.monitor, spec.directory / "machine", jail_uid(spec.id)
        await machine.disk.shorten(monitor)
        await monitor.execute("stop")
        try:
            await machine.disk.freeze(monitor, uid, _DISKS)
            place_for_state(files, uid)
            await save_state(monitor, f"{_DISKS}/{STATE}")
            address = await memory_address(monitor)
            memory = await asyncio.to_thread(
                save_memory, machine.pid, address, machine.memory, into
            )
            saved = SavedMachine(
                hardware=machine.hardware, image=machine.image, overlays=tuple(machine.disk.layers)
            )
            await asyncio.to_thread(write_snapshot_files, files, saved, memory, into)
        finally:
            await monitor.execute("cont")

    def arrival(self, spec: MachineSpec, departing: Departing) -> Arrival:
        """The place for a machine that migrates to this node; see `qemu_migrate.py`."""

        async def launch(memory: MemoryMap, disk: Disk) -> QemuMachine:
            return await self._start(
                spec,
                departing.hardware,
                memory,
                disk,
                departing.image,
                arriving_life(),
            )

        return Arrival(departing, spec.directory, launch)

    def kill(self, machine: Machine) -> None:
        assert isinstance(machine, QemuMachine)
        machine.end()

    def exhausted(self, spec: MachineSpec) -> list[str]:
        if (spec.directory / OUT_OF_MEMORY).exists():
            return ["memory"]
        return self._groups.exhausted(spec.id, crowd=_QEMU_THREADS)

    async def collect(self, specs: Sequence[MachineSpec]) -> None:
        for spec in specs:
            self._groups.kill(spec.id)
        for spec in specs:
            await self._groups.remove(spec.id)
            machine = spec.directory / "machine"
            await asyncio.to_thread(shutil.rmtree, machine, ignore_errors=True)

    # ---- the one first start of each kind of machine

    def _cpus(self, limits: Limits) -> int:
        """An emulated processor keeps one core busy and what serves it part of another; a second
        one would make every fork slower by a quarter."""
        return math.ceil(limits.cpus if self.accelerator == "kvm" else limits.cpus / 2)

    async def _booted(self, spec: MachineSpec) -> Path:
        image = await build_image(spec.rootfs, log.info)
        agent = spec.rootfs / spec.agent.lstrip("/")
        kernel = await asyncio.to_thread(kernel_with_initramfs, agent)
        limits = spec.limits
        if limits.disk_bytes < image.stat().st_size:
            raise UserError(
                f"a disk of {limits.disk_bytes} bytes is smaller than the image {image}",
                f"Allow at least disk_bytes={image.stat().st_size}.",
            )
        hardware = Hardware(
            memory_bytes=limits.memory_bytes,
            cpus=self._cpus(limits),
            disk_bytes=limits.disk_bytes,
        )
        arguments = [str(limits.tmp_bytes), *agent_arguments(spec)[1:]]

        async def start(spec: MachineSpec) -> Machine:
            new_machine(spec.directory)
            machine = await self._start(
                spec,
                hardware,
                MemoryMap.empty(hardware.memory_bytes),
                Disk(spec.directory / "machine" / "disk", hardware.disk_bytes),
                image.name,
                first_start(arguments),
                kernel=kernel,
            )
            await begin(machine.monitor)
            return machine

        parts = (self.fingerprint, kernel.name, image.name, hardware.model_dump_json(), *arguments)
        target = booted_path(*parts)
        async with self._booting:
            if not target.is_dir():
                first = FirstStart(
                    self.name, self.fingerprint, start, self.snapshot, self.kill, self.collect
                )
                await boot_into(target, spec, first)
            os.utime(target)  # in use
        return target
