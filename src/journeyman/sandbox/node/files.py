"""Files of a guest. Errors are OSErrors with the guest's errno."""

import errno
import os
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from journeyman.sandbox.node.link import GuestLink
from journeyman.sandbox.wire.frames import (
    CHUNK_BYTES,
    FrameKind,
    PayloadReader,
    string,
    u32,
    u64,
)

_MOST_ENTRIES = 1_000_000


@dataclass(frozen=True)
class Entry:
    """One file as `lstat` sees it. `kind` is f, d, l or o (anything else)."""

    name: bytes
    kind: str
    mode: int
    user: int
    group: int
    size: int
    mtime_ns: int
    target: bytes


@dataclass(frozen=True)
class Owner:
    """Numbers of a user and a group in the guest."""

    user: int = 0
    group: int = 0

    def payload(self) -> bytes:
        return u32(self.user) + u32(self.group)


ROOT = Owner()


def _entry(payload: PayloadReader) -> Entry:
    kind, mode, user, group = chr(payload.u8()), payload.u32(), payload.u32(), payload.u32()
    size, mtime_ns, name = payload.u64(), payload.u64(), payload.string()
    return Entry(name, kind, mode, user, group, size, mtime_ns, payload.string())


async def read_file(link: GuestLink, path: str, max_bytes: int) -> AsyncIterator[bytes]:
    """The content in pieces. Raises OSError: EFBIG when larger than `max_bytes`, EISDIR,
    ENOENT, EACCES, EINVAL when it is no regular file."""
    with link.channel() as channel:
        finished = False
        try:
            await channel.send(FrameKind.READ, u64(max_bytes) + string(os.fsencode(path)))
            left = max_bytes
            while (frame := await channel.receive()).kind is FrameKind.DATA:
                left -= len(frame.payload)
                if left < 0:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
                yield frame.payload
            finished = True
        finally:
            if not finished and not link.gone.is_set():
                await channel.send(FrameKind.KILL, u32(channel.number) + u32(0))


async def write_file(
    link: GuestLink, path: str, content: AsyncIterable[bytes], mode: int, owner: Owner = ROOT
) -> None:
    """Write beside the target, then rename over it. On any failure the old file is intact."""
    opening = u32(mode) + owner.payload() + string(os.fsencode(path))
    with link.channel() as channel:
        await channel.send(FrameKind.WRITE_OPEN, opening)
        committed = False
        try:
            async for piece in content:
                for at in range(0, len(piece), CHUNK_BYTES):
                    await channel.send(FrameKind.WRITE_DATA, piece[at : at + CHUNK_BYTES])
            committed = True
            await channel.send(FrameKind.WRITE_COMMIT)
            await channel.receive()
        finally:
            if not committed and not link.gone.is_set():
                await channel.send(FrameKind.WRITE_ABORT)


async def stat_file(link: GuestLink, path: str, follow: bool = False) -> Entry:
    """Of the link itself where `path` is a symbolic link, unless told to `follow` it."""
    asked = bytes([follow]) + string(os.fsencode(path))
    return _entry(await link.request(FrameKind.STAT, asked))


async def list_directory(link: GuestLink, path: str) -> list[Entry]:
    """Every entry but `.` and `..`, sorted by name."""
    entries: list[Entry] = []
    with link.channel() as channel:
        await channel.send(FrameKind.LIST, string(os.fsencode(path)))
        while (frame := await channel.receive()).kind is FrameKind.DATA:
            entries.append(_entry(PayloadReader(frame.payload)))
            if len(entries) > _MOST_ENTRIES:
                raise link.break_off(f"it lists more than {_MOST_ENTRIES} files in one directory")
    return sorted(entries, key=lambda entry: entry.name)


async def make_directory(link: GuestLink, path: str, owner: Owner = ROOT) -> None:
    """With its parents; one that exists is fine, and keeps its owner."""
    await link.request(FrameKind.MAKE_DIR, owner.payload() + string(os.fsencode(path)))


async def remove(link: GuestLink, path: str) -> None:
    """With everything below it; links are removed, never followed."""
    await link.request(FrameKind.REMOVE, string(os.fsencode(path)))


async def rename(link: GuestLink, source: str, target: str, owner: Owner = ROOT) -> None:
    """Directories that the target lacks are made, and belong to `owner`."""
    paths = string(os.fsencode(source)) + string(os.fsencode(target))
    await link.request(FrameKind.RENAME, owner.payload() + paths)


async def tree_records(link: GuestLink, root: str, timeout_s: float) -> AsyncIterator[bytes]:
    """The records of `guest/digest.c` in arbitrary pieces; an OSError when the walk failed."""
    with link.channel() as channel:
        await channel.send(FrameKind.TREE, u32(round(timeout_s * 1000)) + string(os.fsencode(root)))
        while (frame := await channel.receive()).kind is not FrameKind.EXITED:
            if frame.kind is FrameKind.OUTPUT and frame.payload[:1] == b"\0":
                yield frame.payload[1:]
        end = PayloadReader(frame.payload)
        how, value = end.u8(), end.u32()
        if how or value:
            number = value if how == 0 else 5
            raise OSError(number, os.strerror(number), root)
