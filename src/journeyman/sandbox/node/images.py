"""Imported images: root file systems beside the default one, named by what they hold."""

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from journeyman.sandbox.node.image_layout import ImageConfig, ImageLayout, layer_content, open_image
from journeyman.sandbox.node.rootfs import AGENT_DIRECTORY
from journeyman.types.failure import UserError

_CONFIG = "image.json"
_ROOT = "root"
_UNPACK_TIMEOUT_S = 1800.0
_NEEDED_DIRECTORIES = (AGENT_DIRECTORY, "proc", "sys", "dev", "tmp", "run", "etc", "root")


class Images:
    """A directory of images, shared by every service of this machine. Each is renamed into place
    whole and never changes afterwards; only agents are added to it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def root(self, image: str) -> Path:
        """Its root file system."""
        return self._directory / image / _ROOT

    def config(self, image: str) -> ImageConfig:
        """Raises UserError when there is no image of that id."""
        if not image.startswith("i-") or "/" in image:
            raise UserError(f"{image!r} is no image id", "Use what import_image returned.")
        try:
            text = (self._directory / image / _CONFIG).read_bytes()
        except FileNotFoundError:
            raise UserError(f"there is no image {image!r}", "Import it first.") from None
        return ImageConfig.model_validate_json(text)

    async def add(self, source: Path) -> str:
        """Import an OCI layout or an archive of one; returns its id, the same for the same
        content. Raises UserError; a failure leaves nothing."""
        if os.geteuid() != 0:
            raise UserError("importing an image needs root", "Its files keep their owners.")
        # Files of an image may be set-uid: nobody but us may reach them from the host.
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open_image(source, platform.machine()) as layout:
            image = f"i-{layout.digest[:20]}"
            if not (self._directory / image).is_dir():
                await self._unpack(layout, image)
        return image

    async def _unpack(self, layout: ImageLayout, image: str) -> None:
        building = Path(tempfile.mkdtemp(dir=self._directory, prefix=".importing-"))
        try:
            root = building / _ROOT
            root.mkdir(mode=0o755)
            for layer in layout.layers:
                with tempfile.TemporaryFile(dir=self._directory) as content:
                    await asyncio.to_thread(layer_content, layout, layer, content)
                    content.seek(0)
                    await _apply(root, content.fileno(), layer.name)
            _complete(root)
            (building / _CONFIG).write_text(layout.config.model_dump_json(), encoding="utf-8")
            os.rename(building, self._directory / image)
        except FileExistsError:
            return  # another service of this machine imported the same
        finally:
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)


async def _apply(root: Path, content: int, name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "journeyman.sandbox.node.image_unpack", str(root)),
        stdin=content,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_ALL": "C.UTF-8"},
    )
    try:
        async with asyncio.timeout(_UNPACK_TIMEOUT_S):
            _, said = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        text = said.decode("utf-8", "replace").strip()[-2000:]
        raise UserError(f"layer {name} cannot be unpacked: {text}", "Save the image again.")


def _complete(root: Path) -> None:
    """What a sandbox mounts on or writes to, where an image leaves it out. Where an image has a
    link or a file of that name it stays: sandboxes resolve it inside."""
    for name in _NEEDED_DIRECTORIES:
        if not os.path.lexists(root / name):
            (root / name).mkdir()
            (root / name).chmod(0o1777 if name == "tmp" else 0o755)
    agents = root / AGENT_DIRECTORY
    if agents.is_symlink() or not agents.is_dir():
        raise UserError(f"the image has a file {AGENT_DIRECTORY!r} at its root")
    shutil.rmtree(agents)
    agents.mkdir()
