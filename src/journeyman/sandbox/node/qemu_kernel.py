"""The kernel of virtual machines: Debian's cloud kernel, unpacked and never installed, and an
initramfs of our own that holds its virtio drivers, a first program and the guest agent."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.sandbox.node.native_build import STATIC, compile_c
from journeyman.types.failure import UserError

_PACKAGE = "linux-image-cloud-amd64"
_MODULES = (
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
    "drivers/char/virtio_console",
)
"""In the order in which they are loaded."""
_INIT = Path(__file__).parent.parent / "guest" / "boot" / "init.c"

Progress = Callable[[str], None]


def _directory() -> Path:
    return home_dir() / "kernel"


def find_kernel() -> Path | None:
    """The newest unpacked kernel that has its modules beside it."""
    found = [path for path in _directory().glob("vmlinuz-*") if _modules(path).is_dir()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _modules(kernel: Path) -> Path:
    return kernel.with_name(kernel.name.replace("vmlinuz", "modules", 1))


def fetch_kernel(progress: Progress) -> Path:
    """Download and unpack it unless one is there; 27 MB. Remove the directory for a newer one.
    Raises UserError."""
    if found := find_kernel():
        return found
    progress("kernel for virtual machines: Debian's cloud kernel (27 MB, not installed)")
    _directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_directory(), prefix=".fetching-") as directory:
        work = Path(directory)
        name = _concrete_package(work)
        if not name:  # the lists of packages may never have been fetched
            _run(work, "apt-get", "-qq", "update")
            name = _concrete_package(work)
        if not name:
            raise UserError(
                f"this machine's package sources do not offer {_PACKAGE}",
                "The qemu driver needs Debian's sources for amd64 in /etc/apt.",
            )
        _run(work, "apt-get", "-qq", "download", name)
        (package,) = work.glob("*.deb")
        _run(work, "dpkg-deb", "--extract", str(package), "unpacked")
        return _keep(work / "unpacked")


def _concrete_package(work: Path) -> str:
    """What the package of all versions stands for today; empty where nobody offers it."""
    try:
        listed = _run(work, "apt-cache", "depends", _PACKAGE)
    except UserError:  # unknown
        return ""
    for line in listed.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and name.startswith("linux-image-"):
            return name
    return ""


def _keep(unpacked: Path) -> Path:
    (image,) = (unpacked / "boot").glob("vmlinuz-*")
    target = _directory() / image.name
    (tree,) = (unpacked / "lib" / "modules").iterdir()
    modules = Path(tempfile.mkdtemp(dir=_directory(), prefix=".modules-"))
    for module in _MODULES:
        shutil.copyfile(tree / "kernel" / f"{module}.ko", modules / f"{Path(module).name}.ko")
    os.rename(modules, _modules(target))
    os.rename(image, target)  # last: only now is the kernel found
    return target


def _run(work: Path, *argv: str) -> str:
    result = subprocess.run(
        argv,
        cwd=work,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise UserError(
            f"'{' '.join(argv)}' failed:\n{result.stderr.strip()[-2000:]}",
            "Mend the package sources below /etc/apt, then run the set-up again.",
        )
    return result.stdout


def require_kernel() -> Path:
    """Raises UserError when set-up has not fetched one."""
    kernel = find_kernel()
    if kernel is None:
        raise UserError(
            f"there is no kernel for virtual machines in {_directory()}",
            "Run as root: make setup DRIVER=qemu",
        )
    return kernel


def kernel_with_initramfs(agent: Path) -> Path:
    """A directory with `vmlinuz` and `initramfs`, named by their content, built unless it is
    there. Both are readable for every user: a jailed QEMU reads them."""
    kernel = require_kernel()
    archive = build_initramfs(_modules(kernel), compile_c("boot", _INIT, STATIC, _COMPILERS), agent)
    digest = hashlib.sha256(kernel.name.encode() + archive).hexdigest()
    target = home_dir() / "qemu" / f"kernel-{digest[:16]}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=".kernel-"))
    shutil.copyfile(kernel, building / "vmlinuz")
    (building / "initramfs").write_bytes(archive)
    for path in building.iterdir():
        path.chmod(0o444)
    building.chmod(0o755)
    try:
        os.rename(building, target)
    except OSError:  # somebody else was faster
        shutil.rmtree(building)
    return target


_COMPILERS = ("musl-gcc", "gcc")


def build_initramfs(modules: Path, init: Path, agent: Path) -> bytes:
    """An archive in the kernel's `newc` format."""
    names = [f"{Path(module).name}.ko" for module in _MODULES]
    files = [
        ("init", 0o100755, init.read_bytes()),
        ("agent", 0o100755, agent.read_bytes()),
        ("dev", 0o40755, b""),
        ("modules", 0o40755, b""),
        *((f"modules/{name}", 0o100644, (modules / name).read_bytes()) for name in names),
        ("modules/order", 0o100644, "".join(f"{name}\n" for name in names).encode()),
        ("TRAILER!!!", 0, b""),
    ]
    return b"".join(_member(number, *file) for number, file in enumerate(files, 1))


def _member(number: int, name: str, mode: int, content: bytes) -> bytes:
    """One file; see Documentation/driver-api/early-userspace/buffer-format.rst."""
    path = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
