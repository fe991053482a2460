"""What changed below a directory of a guest. What the guest says is data, never trusted."""

import os
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.sandbox.wire.frames import PayloadReader
from journeyman.types.failure import SandboxError
from journeyman.types.value import Value


class FileDigest(Value):
    """One file as it was. `sha256` is of the content, or of a link's target; empty for
    directories and devices. `kind` is f, d, l or o (anything else)."""

    kind: str
    mode: int
    size: int
    sha256: str
    target: str = ""


async def tree_digests(sandbox: RemoteSandbox, root: str) -> dict[str, FileDigest]:
    """Every file below `root` by its path relative to it, `/`-separated; links not followed.

    Raises FileNotFoundError and its kin for the root itself, SandboxError for an answer that no
    agent of ours would give.
    """
    return dict(_parse(await sandbox.tree_records(root)))


async def tree_changes(
    sandbox: RemoteSandbox, root: str, baseline: Mapping[str, FileDigest]
) -> dict[str, bytes | None]:
    """Content of each regular file that is new or differs from `baseline`; None where one of
    the baseline is gone or is no regular file any more.

    Symbolic links are never followed: a file replaced by a link is None here, and new links are
    in `tree_digests` only. Directories do not count.
    """
    now = await tree_digests(sandbox, root)
    changes: dict[str, bytes | None] = {}
    for name, before in baseline.items():
        after = now.get(name)
        if before.kind == "f" and (after is None or after.kind != "f"):
            changes[name] = None
    for name, after in now.items():
        before_or_none = baseline.get(name)
        same = before_or_none is not None and _content(before_or_none) == _content(after)
        if after.kind == "f" and not same:
            changes[name] = await _read(sandbox, root, name)
    return changes


def _content(digest: FileDigest) -> tuple[str, int, str]:
    return digest.kind, digest.mode & 0o111, digest.sha256


async def _read(sandbox: RemoteSandbox, root: str, name: str) -> bytes | None:
    try:
        return await sandbox.read_file(f"{root.rstrip('/')}/{name}")
    except FileNotFoundError:
        return None  # removed by something that still runs in the guest


def _parse(data: bytes) -> Iterator[tuple[str, FileDigest]]:
    records = PayloadReader(data)
    while records.left:
        kind, mode, size = chr(records.u8()), records.u32(), records.u64()
        sha256 = records.take(32).hex()
        name, target = os.fsdecode(records.string()), os.fsdecode(records.string())
        _check_name(name)
        if kind not in "fdlo":
            raise SandboxError(f"a guest reported {name!r} as a file of kind {kind!r}")
        yield (
            name,
            FileDigest(
                kind=kind,
                mode=mode,
                size=size,
                sha256="" if kind in "do" else sha256,
                target=target,
            ),
        )


def _check_name(name: str) -> None:
    """A name is about to be joined to paths of ours: it must stay below the root."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise SandboxError(f"a guest reported a file outside its tree: {name!r}")
