"""Snapshots on disk: whole or absent, and refused when a bit has changed."""

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
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


def _digest(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def _seal(directory: Path, manifest: SnapshotManifest, durable: bool) -> None:
    if not durable:
        (directory / _MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
        return
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        path.chmod(0o600)
        _fsync(path)
        files[str(path.relative_to(directory))] = _digest(path)
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
    """Checks snapshots before they run, each once as long as its files stay untouched."""

    def __init__(self) -> None:
        self._checked: dict[Path, tuple[tuple[int, ...], ...]] = {}

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
        marks = _marks(snapshot, manifest)
        if self._checked.get(snapshot) != marks:
            await asyncio.to_thread(_compare, snapshot, manifest)
            self._checked[snapshot] = marks
        return manifest


def _marks(snapshot: Path, manifest: SnapshotManifest) -> tuple[tuple[int, ...], ...]:
    marks = []
    for name in (_MANIFEST, *manifest.files):
        try:
            stat = os.stat(snapshot / name)
        except FileNotFoundError:
            raise _corrupt(snapshot, f"{name!r} is missing") from None
        marks.append((stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return tuple(marks)


def _compare(snapshot: Path, manifest: SnapshotManifest) -> None:
    for name, expected in manifest.files.items():
        if _digest(snapshot / name) != expected:
            raise _corrupt(snapshot, f"{name!r} does not have the digest it was written with")


def _corrupt(snapshot: Path, what: str) -> SandboxError:
    return SandboxError(
        f"snapshot {snapshot} is corrupt: {what}",
        f"It was not started. Remove {snapshot} and build it again.",
    )
