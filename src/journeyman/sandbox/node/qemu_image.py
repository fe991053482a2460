"""The disk image of virtual machines: an ext4 file system made from a root file system."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.sandbox.node.process import run

IMAGE_BYTES = 4 << 30
"""Its apparent size, and so that of a sandbox's disk. Only what is used takes space."""
_OPTIONS = (
    # No journal: a machine goes on from saved memory or not at all, never from a crashed disk.
    *("-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=1,nodiscard"),
)
_REVISION = 1

Progress = Callable[[str], None]


def image_path(rootfs: Path) -> Path:
    """Where the image of a root file system is, built or not. Root file systems never change
    once they have their name, but for the agents in them, which machines do not run."""
    recipe = f"{rootfs.name} {IMAGE_BYTES} {_OPTIONS} {_REVISION}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    return home_dir() / "qemu" / f"image-{digest}.ext4"


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
        os.truncate(name, IMAGE_BYTES)
        await run(("mkfs.ext4", "-q", "-F", *_OPTIONS, "-d", str(rootfs), name), timeout_s=300)
        os.chmod(name, 0o444)
        os.rename(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target
