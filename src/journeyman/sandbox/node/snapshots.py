"""Snapshots on disk: whole or absent, and refused when a bit has changed."""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from journeyman.types.failure import SandboxError
from journeyman.types.value import Value

_MANIFEST = "manifest.json"


class SnapshotManifest(Value):
    """What a snapshot holds. `files`: name → (size, sha256)."""

    driver: str
    fingerprint: str
    next_number: int
    """First channel number that no command inside the snapshot uses."""
    files: dict[str, tuple[int, str]]


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Digests:
    """Digests of files as this process has seen them, by what the file system says of a file: it
    is read again when it was touched. Snapshots share files by hard links, and a template's
    memory would otherwise be read for each of its forks."""

    def __init__(self, most: int = 65_536) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, ...], str] = OrderedDict()
        """(device, inode, size, time of change) → digest. The inode's own time of change
        is no part of it: a further hard link changes that."""

    def of(self, path: Path) -> tuple[int, str]:
        """(size, sha256). Raises FileNotFoundError."""
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            mark = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if mark not in self._known:
                self._known[mark] = hashlib.file_digest(file, "sha256").hexdigest()
                if len(self._known) > self._most:
                    self._known.popitem(last=False)
            return stat.st_size, self._known[mark]


_digests = _Digests()


def _seal(directory: Path, manifest: SnapshotManifest, durable: bool) -> None:
    if not durable:
        (directory / _MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
        return
    paths = [p for p in sorted(directory.rglob("*")) if p.is_file() and not p.is_symlink()]
    # The disk is waited for while the processor reads.
    with ThreadPoolExecutor(1) as disk:
        synced = [disk.submit(_fsync, path) for path in paths]
        for path in paths:
            path.chmod(0o444)  # the directory is its owner's; a jailed engine sees only the file
        files = {str(path.relative_to(directory)): _digests.of(path) for path in paths}
        for one in synced:
            one.result()
    manifest = manifest.model_copy(update={"files": files})
    written = directory / _MANIFEST
    written.write_text(manifest.model_dump_json(), encoding="utf-8")
    _fsync(written)
    _fsync(directory)


async def write_snapshot(
    target: Path,
    write: Callable[[Path], Awaitable[None]],
    *,
    driver: str,
    fingerprint: str,
    next_number: int,
    durable: bool = True,
) -> None:
    """Let `write` fill a directory, then give it its name in one step.

    Killed at any point, this leaves a whole snapshot or none. Names are never used twice.
    One that this process reads next and then removes need not be `durable`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    manifest = SnapshotManifest(
        driver=driver, fingerprint=fingerprint, next_number=next_number, files={}
    )
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=".writing-"))
    try:
        await write(building)
        await asyncio.to_thread(_seal, building, manifest, durable)
        os.rename(building, target)
        if durable:
            _fsync(target.parent)
    finally:
        shutil.rmtree(building, ignore_errors=True)


class SnapshotReader:
    """Checks snapshots before they run. A file is read once as long as it stays untouched."""

    async def check(self, snapshot: Path, driver: str, fingerprint: str) -> SnapshotManifest:
        """Raises SandboxError naming the file that is not as it was written."""
        try:
            text = (snapshot / _MANIFEST).read_bytes()
            manifest = SnapshotManifest.model_validate_json(text)
        except (OSError, ValidationError) as error:
            raise _corrupt(snapshot, f"its manifest is unreadable: {error}") from None
        if (manifest.driver, manifest.fingerprint) != (driver, fingerprint):
            raise SandboxError(
                f"snapshot {snapshot} was made by another engine or on another CPU: "
                f"{manifest.driver} {manifest.fingerprint}, here {driver} {fingerprint}",
                "Build the template again on this machine.",
            )
        await asyncio.to_thread(_compare, snapshot, manifest)
        return manifest


def _compare(snapshot: Path, manifest: SnapshotManifest) -> None:
    for name, expected in manifest.files.items():
        try:
            found = _digests.of(snapshot / name)
        except FileNotFoundError:
            raise _corrupt(snapshot, f"{name!r} is missing") from None
        if found != expected:
            raise _corrupt(snapshot, f"{name!r} does not have the digest it was written with")


def _corrupt(snapshot: Path, what: str) -> SandboxError:
    return SandboxError(
        f"snapshot {snapshot} is corrupt: {what}",
        f"It was not started. Remove {snapshot} and build it again.",
    )
