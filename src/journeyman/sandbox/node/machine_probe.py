"""Does virtualisation work here? Told by really running something, never by a device file.

`python -m journeyman.sandbox.node.machine_probe kvm|gvisor|bubblewrap|qemu` prints one line and
exits 0 if it works, 1 if it does not. It may hang where a hypervisor is broken: give it a limit.
"""

import asyncio
import ctypes
import fcntl
import mmap
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.sandbox.node.probe import choose_driver
from journeyman.sandbox.node.qemu_command import KVM_CPU
from journeyman.sandbox.node.qemu_kernel import find_kernel
from journeyman.sandbox.node.rootfs import rootfs_path
from journeyman.types.failure import JourneymanError

# A 64-bit guest: it loads an interrupt table, says J, raises an invalid-opcode exception whose
# handler says Y and skips the opcode, says M, asks for CPU identity and time, says !, halts.
#   mov $0x4000,%rsp; mov $0x5050,%eax; mov %ax,0x3060; movw $8,0x3062; movw $0x8e00,0x3064
#   shr $16,%eax; mov %ax,0x3066; lidt 0x5060; mov $'J',%al; out %al,$0xe9; ud2
#   mov $'M',%al; out %al,$0xe9; xor %eax,%eax; cpuid; rdtsc; mov $'!',%al; out %al,$0xe9; hlt
#   0x5050: mov $'Y',%al; out %al,$0xe9; addq $2,(%rsp); iretq
#   0x5060: .word 0x7f; .quad 0x3000
_GUEST = bytes.fromhex(
    "48c7c400400000b850500000668904256030000066c7042562300000080066c7042564300000008ec1e810668904"
    "25663000000f011c2560500000b04ae6e90f0bb04de6e931c00fa20f31b021e6e9f4b059e6e9488304240248cf0f"
    "1f4400007f000030000000000000"
)
_SAYS = b"JYM!"
_GUEST_AT, _MEMORY_BYTES = 0x5000, 0x400000
_GDT_AT, _PML4_AT = 0x1000, 0x10000

_KVM_CREATE_VM, _KVM_CREATE_VCPU, _KVM_RUN = 0xAE01, 0xAE41, 0xAE80
_KVM_GET_VCPU_MMAP_SIZE, _KVM_GET_SUPPORTED_CPUID, _KVM_SET_CPUID2 = 0xAE04, 0xC008AE05, 0x4008AE90
_KVM_SET_USER_MEMORY_REGION = 0x4020AE46
_KVM_GET_SREGS, _KVM_SET_SREGS, _KVM_SET_REGS = 0x8138AE83, 0x4138AE84, 0x4090AE82
_EXIT_IO, _EXIT_HALT = 2, 5

# A boot sector: mov $'J',%al; out %al,$0xe9; mov $0x31,%al; out %al,$0xf4; hlt
_BOOT_SECTOR = bytes.fromhex("b04ae6e9b031e6f4f4").ljust(510, b"\0") + b"\x55\xaa"
_KERNEL_TIMEOUT_S = 7.0
_QEMU = "qemu-system-x86_64"


class ProbeFailed(Exception):
    """It does not work; the text says what was seen."""


def kvm() -> str:
    """Boot a stock Linux kernel through KVM.

    Some hypervisors run small guests and stop stock kernels, so nothing less is proof; a small
    guest of our own comes first because it tells a broken KVM from a missing QEMU.
    """
    if platform.machine() != "x86_64":
        raise ProbeFailed(f"only probed on x86_64, this is {platform.machine()}")
    if not Path("/dev/kvm").exists():
        raise ProbeFailed("there is no /dev/kvm")
    said = _run_guest()
    if said != _SAYS:
        raise ProbeFailed(f"/dev/kvm opens, but a small guest said {said!r} instead of {_SAYS!r}")
    kernels = sorted([*Path("/boot").glob("vmlinuz*"), *(home_dir() / "kernel").glob("vmlinuz*")])
    if not shutil.which(_QEMU) or not kernels:
        missing = "a kernel to boot" if shutil.which(_QEMU) else "QEMU"
        raise ProbeFailed(f"a small guest runs; a stock kernel was not tried for want of {missing}")
    _boot_kernel(kernels[-1])
    return f"a stock kernel boots ({kernels[-1].name})"


def gvisor() -> str:
    """Start a container in gVisor."""
    if not shutil.which("runsc"):
        raise ProbeFailed("runsc is not installed")
    version = subprocess.run(["runsc", "--version"], check=False, capture_output=True, text=True)
    with tempfile.TemporaryDirectory(prefix="journeyman-probe-") as state:
        _check(
            ["runsc", f"--root={state}", "--network=none", "--ignore-cgroups", "do", "true"],
            "runsc",
        )
    return _with_driver("gvisor", f"a container runs ({version.stdout.split()[2]})")


def bubblewrap() -> str:
    """Run a program in namespaces of its own."""
    if not shutil.which("bwrap"):
        raise ProbeFailed("bwrap is not installed")
    isolate = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"]
    _check([*isolate, "--proc", "/proc", "--dev", "/dev", "true"], "bwrap")
    return _with_driver("bubblewrap", "a program runs in namespaces of its own")


def qemu() -> str:
    """Boot a sector through QEMU's software emulation, then a sandbox with whatever it has."""
    if not shutil.which(_QEMU):
        raise ProbeFailed(f"{_QEMU} is not installed")
    _boot_sector("tcg")
    version = subprocess.run([_QEMU, "--version"], check=True, capture_output=True, text=True)
    return _with_driver("qemu", f"a machine boots under emulation ({version.stdout.split()[3]})")


def _with_driver(name: str, engine_works: str) -> str:
    """The engine works; does our driver start a sandbox with it?"""
    if not rootfs_path().is_dir():
        return f"{engine_works}; the sandboxes' root file system is not built yet"
    if name == "qemu" and find_kernel() is None:
        return f"{engine_works}; the machines' kernel is not fetched yet"
    try:
        driver = asyncio.run(choose_driver(name))
    except JourneymanError as error:
        raise ProbeFailed(f"{engine_works}, but {error.cause}") from error
    return f"{engine_works}, and a sandbox answers: {driver.isolation}"


def _check(argv: list[str], name: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ProbeFailed(f"{name}: {lines[-1]}")


def _boot_sector(accelerator: str) -> None:
    with tempfile.TemporaryDirectory(prefix="journeyman-probe-") as directory:
        disk = Path(directory) / "disk.img"
        disk.write_bytes(_BOOT_SECTOR.ljust(1 << 20, b"\0"))
        said = Path(directory) / "said"
        done = subprocess.run(
            (
                *(_QEMU, "-M", "pc", "-accel", accelerator, "-m", "16", "-display", "none"),
                *("-nodefaults", "-no-reboot", "-drive", f"file={disk},format=raw,if=ide"),
                *("-debugcon", f"file:{said}", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"),
            ),
            check=False,
            capture_output=True,
            text=True,
        )
        heard = said.read_bytes() if said.exists() else b""
    # isa-debug-exit ends QEMU with twice the written value, plus one.
    if done.returncode != 2 * 0x31 + 1 or not heard.endswith(b"J"):
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise ProbeFailed(f"QEMU with {accelerator} does not boot: {reason}")


def _boot_kernel(kernel: Path) -> None:
    """Wait for the kernel's first line on the serial port."""
    process = subprocess.Popen(
        (
            *(_QEMU, "-M", "pc", "-accel", "kvm", "-cpu", KVM_CPU),
            *("-m", "256", "-display", "none"),
            *("-nodefaults", "-no-reboot", "-serial", "stdio", "-kernel", str(kernel)),
            *("-append", "console=ttyS0 earlyprintk=serial panic=-1"),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    watchdog = threading.Timer(_KERNEL_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        booted = any(b"Linux version" in line for line in process.stdout)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    if not booted:
        raise ProbeFailed(f"a small guest runs, but the stock kernel {kernel.name} does not boot")


def _run_guest() -> bytes:
    """What the small guest wrote to port 0xe9 until it halted."""
    memory = mmap.mmap(-1, _MEMORY_BYTES)
    _fill(memory)
    descriptors = [os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)]
    try:
        control = descriptors[0]
        machine = fcntl.ioctl(control, _KVM_CREATE_VM, 0)
        descriptors.append(machine)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        region = struct.pack("<IIQQQ", 0, 0, 0, _MEMORY_BYTES, address)
        fcntl.ioctl(machine, _KVM_SET_USER_MEMORY_REGION, region)
        cpu = fcntl.ioctl(machine, _KVM_CREATE_VCPU, 0)
        descriptors.append(cpu)
        cpuid = bytearray(struct.pack("<II", 256, 0) + bytes(256 * 40))
        fcntl.ioctl(control, _KVM_GET_SUPPORTED_CPUID, cpuid)
        fcntl.ioctl(cpu, _KVM_SET_CPUID2, cpuid)
        _enter_long_mode(cpu)
        shared = mmap.mmap(cpu, fcntl.ioctl(control, _KVM_GET_VCPU_MMAP_SIZE, 0))
        return _listen(cpu, shared)
    except OSError as error:
        raise ProbeFailed(f"/dev/kvm refuses: {error.strerror}") from error
    finally:
        for descriptor in reversed(descriptors):
            os.close(descriptor)


def _fill(memory: mmap.mmap) -> None:
    """Segments, page tables that map the first 1 GiB onto itself, and the program."""
    segments = struct.pack("<QQQ", 0, 0x00209B0000000000, 0x0000930000000000)
    memory[_GDT_AT : _GDT_AT + len(segments)] = segments
    pointers, directory = _PML4_AT + 0x1000, _PML4_AT + 0x2000
    memory[_PML4_AT : _PML4_AT + 8] = struct.pack("<Q", pointers | 3)
    memory[pointers : pointers + 8] = struct.pack("<Q", directory | 3)
    pages = struct.pack("<512Q", *((page << 21) | 0x83 for page in range(512)))
    memory[directory : directory + len(pages)] = pages
    memory[_GUEST_AT : _GUEST_AT + len(_GUEST)] = _GUEST


def _enter_long_mode(cpu: int) -> None:
    state = bytearray(312)  # struct kvm_sregs: 8 segments of 24 bytes, 2 tables of 16, registers
    fcntl.ioctl(cpu, _KVM_GET_SREGS, state)
    code = struct.pack("<QIH8Bxx", 0, 0xFFFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0)
    data = struct.pack("<QIH8Bxx", 0, 0xFFFFF, 16, 3, 1, 0, 1, 1, 0, 1, 0)
    state[0:24] = code
    for number in range(1, 6):
        state[24 * number : 24 * number + 24] = data
    state[192:202] = struct.pack("<QH", _GDT_AT, 23)
    cr0, cr3, cr4, efer = 0x80010001, _PML4_AT, 0x20, 0x500
    state[224:264] = struct.pack("<QQQQQ", cr0, 0, cr3, cr4, 0)
    state[264:272] = struct.pack("<Q", efer)
    fcntl.ioctl(cpu, _KVM_SET_SREGS, bytes(state))
    registers = struct.pack("<18Q", *[0] * 16, _GUEST_AT, 2)
    fcntl.ioctl(cpu, _KVM_SET_REGS, registers)


def _listen(cpu: int, shared: mmap.mmap) -> bytes:
    said = b""
    for _ in range(2 * len(_SAYS)):
        fcntl.ioctl(cpu, _KVM_RUN, 0)
        reason = struct.unpack_from("<I", shared, 8)[0]
        if reason != _EXIT_IO:
            return said if reason == _EXIT_HALT else said + f" and exit {reason}".encode()
        offset = struct.unpack_from("<Q", shared, 40)[0]
        said += shared[offset : offset + 1]
    return said


PROBES: dict[str, Callable[[], str]] = {
    "kvm": kvm,
    "gvisor": gvisor,
    "bubblewrap": bubblewrap,
    "qemu": qemu,
}

if __name__ == "__main__":
    try:
        print(PROBES[sys.argv[1]]())
    except (ProbeFailed, OSError) as failure:
        print(failure)
        sys.exit(1)
