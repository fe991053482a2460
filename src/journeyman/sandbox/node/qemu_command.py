"""QEMU's command line for one machine: the same for its first start and every later life."""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from journeyman.sandbox.node.qemu_disk import DISK_NODE, Disk, Node, disk_nodes
from journeyman.sandbox.node.qemu_jail import KERNEL, RAM, SECCOMP
from journeyman.types.value import Value

PROGRAM = "/usr/bin/qemu-system-x86_64"
PORT_NAME = "journeyman"
CONSOLE = "console"
OLDEST_QEMU = (9, 1)
"""The first that takes KVM's device as a descriptor."""
_MACHINE_TYPE = "pc-i440fx-9.1"
_CODE_MB = 256
"""At most, of translated code: with less, a run of Python translates everything several times.
Only what is used takes memory."""
KVM_CPU = "host,migratable=on"
_EMULATED_CPU = "qemu64,-svm,+ssse3,+sse4.1,+sse4.2,+popcnt"
"""x86-64-v2, which is what binary Python packages ask for. Wider vectors cost every switch."""
_KERNEL_OPTIONS = (
    "console=ttyS0 quiet loglevel=3 panic=-1 random.trust_cpu=on audit=0 "
    # One tenant's code runs in it, as root: there is nobody to protect it from in there.
    "mitigations=off nopti init_on_alloc=0 "
    # What is touched becomes private to a fork: small pages keep that small.
    "transparent_hugepage=madvise "
    "rdinit=/init"
)


def qemu_version() -> tuple[int, ...]:
    """Of the installed QEMU. Raises FileNotFoundError when there is none."""
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.split()[3].split("."))


class Hardware(Value):
    """What a saved device state fits to."""

    memory_bytes: int
    cpus: int
    disk_bytes: int


class Rates(Value):
    """Of the disk; 0 is unlimited."""

    bytes_per_s: int
    operations_per_s: int


@dataclass(frozen=True)
class Inherited:
    """Descriptors that QEMU is started with: its control connection, the agent's port, KVM."""

    monitor: int
    port: int
    kvm: int | None

    def descriptors(self) -> tuple[int, ...]:
        return tuple(d for d in (self.monitor, self.port, self.kvm) if d is not None)


def _options(**values: object) -> str:
    return ",".join(f"{key.replace('_', '-')}={value}" for key, value in values.items())


def _accelerator(kvm: int | None) -> list[str]:
    if kvm is not None:
        # The device is opened outside the jail, whose user may not.
        return [
            *("-add-fd", f"fd={kvm},set=1"),
            *("-accel", "kvm,device=/dev/fdset/1", "-cpu", KVM_CPU),
        ]
    return ["-accel", f"tcg,thread=multi,tb-size={_CODE_MB}", "-cpu", _EMULATED_CPU]


def command_line(
    hardware: Hardware,
    nodes: Sequence[Node],
    rates: Rates,
    inherited: Inherited,
) -> list[str]:
    """Complete but for `first_start` or `later_life`."""
    memory = f"{hardware.memory_bytes >> 20}M"
    machine = _options(hpet="off", usb="off", vmport="off", memory_backend="ram", mem_merge="off")
    ram = _options(id="ram", size=memory, mem_path=RAM, share="on")
    throttle = {
        "qom-type": "throttle-group",
        "id": "disk-rate",
        "x-bps-total": rates.bytes_per_s,
        "x-iops-total": rates.operations_per_s,
    }
    argv = [
        *(PROGRAM, "-nodefaults", "-no-user-config", "-display", "none", "-sandbox", SECCOMP),
        *("-machine", f"{_MACHINE_TYPE},{machine}", "-m", memory, "-smp", str(hardware.cpus)),
        *_accelerator(inherited.kvm),
        *("-object", f"memory-backend-file,{ram}", "-object", json.dumps(throttle)),
        *(
            "-chardev",
            f"socket,id=monitor,fd={inherited.monitor}",
            "-mon",
            "chardev=monitor,mode=control",
        ),
        *(
            "-device",
            "virtio-serial-pci,max_ports=2",
            "-chardev",
            f"socket,id=port,fd={inherited.port}",
        ),
        *("-device", f"virtserialport,chardev=port,name={PORT_NAME}"),
        # The last words of a dying kernel, read over the monitor. A file would grow without end.
        *("-chardev", f"ringbuf,id={CONSOLE},size=16K", "-serial", f"chardev:{CONSOLE}"),
        # A machine that stops by itself stays, until it has been asked why.
        *("-action", "reboot=shutdown,shutdown=pause,panic=pause"),
        # Otherwise a state saved by a paused machine would wait for somebody to continue it.
        *("-global", "migration.store-global-state=off"),
    ]
    for node in nodes:
        argv += ["-blockdev", json.dumps(node)]
    disk = _options(drive=DISK_NODE, rerror="report", werror="report")
    return [*argv, "-device", f"virtio-blk-pci,{disk}"]


def first_start(arguments: Sequence[str]) -> list[str]:
    """Boot the kernel; later lives need neither it nor its initramfs. `arguments` are those of
    the first program, see guest/boot/init.c."""
    return [
        *("-kernel", f"{KERNEL}/vmlinuz", "-initrd", f"{KERNEL}/initramfs"),
        *("-append", f"{_KERNEL_OPTIONS} -- {' '.join(arguments)}"),
    ]


def later_life() -> list[str]:
    """Wait for a saved state and go on from it at once."""
    return ["-incoming", "defer"]


def arriving_life() -> list[str]:
    """Wait for a machine that migrates, and stay stopped when it is here."""
    return ["-incoming", "defer", "-S"]


def command_digest() -> str:
    """Changes with every option above: a state fits only the machine it was saved from."""
    hardware = Hardware(memory_bytes=1 << 20, cpus=1, disk_bytes=1 << 20)
    rates = Rates(bytes_per_s=0, operations_per_s=0)
    argv = command_line(hardware, disk_nodes(Disk(Path(), 0), "", ""), rates, Inherited(3, 4, None))
    return hashlib.sha256("\0".join([*argv, *first_start([])]).encode()).hexdigest()[:8]
