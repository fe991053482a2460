"""A virtual machine's disk: a read-only image, frozen overlays, and one overlay that is written.

A snapshot freezes the topmost overlay and starts another above it, which costs milliseconds
whatever was written. Every overlay is an image without a backing file in its header: which lies
above which is said on QEMU's command line, so that no header, which the guest's side may have
written, decides what is opened.
"""

import asyncio
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from journeyman.config.home import home_dir
from journeyman.sandbox.node.process import run
from journeyman.sandbox.node.qemu_monitor import Event, Monitor
from journeyman.types.failure import SandboxError

Node = dict[str, Any]
"""Of QEMU's block layer, as its monitor and `-blockdev` take it."""
IMAGE_NODE, DISK_NODE = "image", "disk"
MAX_LAYERS = 8
"""Before a snapshot would make the chain longer, all but the lowest overlay are merged: a read
asks each of them in turn."""
_MERGE_S = 300.0


@dataclass
class Disk:
    """The overlays of one machine, as they lie in its directory."""

    directory: Path
    bytes: int
    layers: list[str] = field(default_factory=list)
    """Frozen ones, oldest first."""
    top: str = ""
    _writes: int | None = 0
    """Of the guest, in this life of QEMU, up to which all is frozen; None: the topmost overlay
    holds what no write of the guest's put there."""

    async def add_top(self, uid: int) -> None:
        """A new empty overlay that QEMU's user may write."""
        empty = await _empty_overlay(self.bytes)
        self.top = f"disk-{secrets.token_hex(6)}"
        path = self.directory / self.top
        shutil.copyfile(empty, path)
        os.chown(path, uid, uid)
        path.chmod(0o600)

    async def shorten(self, monitor: Monitor) -> None:
        """Of a running machine, where the chain is long. Raises SandboxError."""
        if len(self.layers) < MAX_LAYERS:
            return
        job = f"merge-{secrets.token_hex(4)}"
        merged = monitor.expect(lambda event: _is_end_of(job, event))
        await monitor.execute("block-stream", job_id=job, device=self.top, base_node=self.layers[0])
        async with asyncio.timeout(_MERGE_S):
            event = await merged
        if problem := event["data"].get("error"):
            raise SandboxError(f"QEMU could not merge overlays: {problem}")
        self.layers = self.layers[:1]
        self.fill_top()

    def fill_top(self) -> None:
        """The topmost overlay was filled by others than the guest, and must be kept."""
        self._writes = None

    async def freeze(self, monitor: Monitor, uid: int, directory: str) -> None:
        """Of a stopped machine: from now on nothing writes what was topmost, and links to it may
        go into snapshots. Without a write since the last time there is nothing to do.
        `directory` is where QEMU's process sees these files. Raises SandboxError."""
        writes = await _writes(monitor)
        if writes == self._writes:
            return
        frozen = self.top
        await self.add_top(uid)
        try:
            for node in overlay_nodes(self.top, f"{directory}/{self.top}", "", writable=True):
                await monitor.execute("blockdev-add", **node)
            await monitor.execute("blockdev-snapshot", node=frozen, overlay=self.top)
        except BaseException:
            (self.directory / self.top).unlink(missing_ok=True)
            self.top = frozen
            raise
        path = self.directory / frozen
        os.chown(path, 0, 0)
        path.chmod(0o444)
        self.layers.append(frozen)
        self._writes = writes


async def _empty_overlay(size: int) -> Path:
    """An overlay without content, made once for each size."""
    path = home_dir() / "qemu" / f"overlay-{size}.qcow2"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        await run(
            ("qemu-img", "create", "-q", "-f", "qcow2", str(temporary), str(size)), timeout_s=30
        )
        os.rename(temporary, path)
    return path


def overlay_nodes(name: str, filename: str, below: str, writable: bool) -> list[Node]:
    """Block nodes of one overlay above the node `below`; None leaves that to a later command."""
    read_only = not writable
    return [
        {
            "driver": "file",
            "node-name": f"{name}-f",
            "filename": filename,
            "read-only": read_only,
            # What must outlive a crash of the host is synced when a snapshot is sealed.
            "cache": {"no-flush": True},
        },
        {
            "driver": "qcow2",
            "node-name": name,
            "file": f"{name}-f",
            "read-only": read_only,
            "discard": "unmap",
            "backing": below or None,
        },
    ]


def _is_end_of(job: str, event: Event) -> bool:
    ended = event.get("event") in ("BLOCK_JOB_COMPLETED", "BLOCK_JOB_CANCELLED")
    return ended and event.get("data", {}).get("device") == job


async def _writes(monitor: Monitor) -> int:
    devices = await monitor.execute("query-blockstats")
    kinds = ("wr_operations", "unmap_operations")
    return sum(int(device["stats"][kind]) for device in devices for kind in kinds)


def disk_nodes(disk: Disk, image: str, directory: str) -> list[Node]:
    """All block nodes, lowest first; paths as QEMU's process sees them."""
    nodes: list[Node] = [
        {
            "driver": "file",
            "node-name": f"{IMAGE_NODE}-f",
            "filename": image,
            "read-only": True,
            "auto-read-only": False,
        },
        {"driver": "raw", "node-name": IMAGE_NODE, "file": f"{IMAGE_NODE}-f", "read-only": True},
    ]
    below = IMAGE_NODE
    for name in (*disk.layers, disk.top):
        nodes += overlay_nodes(name, f"{directory}/{name}", below, writable=name == disk.top)
        below = name
    throttle = {"driver": "throttle", "node-name": DISK_NODE, "throttle-group": "disk-rate"}
    return [*nodes, {**throttle, "file": disk.top}]
