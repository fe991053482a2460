"""The disk image of virtual machines: an ext4 file system made from a root file system."""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.sandbox.node.process import run

_SPARE_BYTES = 768 << 20
"""Beside the files. A machine's first start grows the file system to the size of its disk, for
which its tables must have room."""
_OPTIONS = (
    # No journal: a machine goes on from saved memory or not at all, never from a crashed disk.
    *("-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=1,nodiscard"),
)
_REVISION = 1

Progress = Callable[[str], None]


def image_path(rootfs: Path) -> Path:
    """Where the image of a root file system is, built or not. Root file systems never change
    once they have their name, but for the agents in them, which machines do not run."""
    recipe = f"{rootfs.name} {_SPARE_BYTES} {_OPTIONS} {_REVISION}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    return home_dir() / "qemu" / f"image-{digest}.ext4"


def _used_bytes(directory: Path) -> int:
    """In whole blocks of 4 KiB; directories and links count one."""
    return sum(
        4096 + entry.lstat().st_blocks * 512
        for folder, _, names in os.walk(directory)
        for entry in (Path(folder), *(Path(folder, name) for name in names))
    )


async def build_image(rootfs: Path, progress: Progress) -> Path:
    """Build it unless it is there; a few seconds. Raises SandboxError."""
    target = image_path(rootfs)
    if target.exists():
        return target
    progress(f"disk image of {rootfs} for virtual machines")
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".image-")
    os.close(descriptor)
    try:
        os.truncate(name, await asyncio.to_thread(_used_bytes, rootfs) + _SPARE_BYTES)
        await run(("mkfs.ext4", "-q", "-F", *_OPTIONS, "-d", str(rootfs), name), timeout_s=300)
        os.chmod(name, 0o444)
        os.rename(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target
