"""What a session changed, as a unified diff. Only text is produced; no file is ever written.

The start is not what the agent's machine says it was: a fresh fork of the same environment is
made and compared with, so nothing is spent on sessions whose patch nobody asks for.
"""

import difflib
import posixpath
from collections.abc import Mapping

from journeyman.agent.session import Session
from journeyman.agent.table import unpack
from journeyman.sandbox.client import RemoteSandbox
from journeyman.sandbox.client.tree import tree_changes, tree_digests
from journeyman.types import Sandbox, Sandboxes, UserError

MAX_DIFF_BYTES = 2 << 20

_CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".git"}


async def session_patch(sandboxes: Sandboxes, session: Session) -> bytes:
    """The diff of a session's working directory against its start."""
    root = session.environment.workdir
    fresh = await sandboxes.create(session.environment)
    try:
        if session.upload is not None:
            await unpack(fresh, session.upload, root)
        start = await tree_digests(_walkable(fresh), root)
        changes = await tree_changes(_walkable(session.sandbox), root, start)
        before = {name: await _content(fresh, root, name) for name in changes if _shown(name)}
    finally:
        await fresh.close()
    return unified(before, {name: changes[name] for name in before})


def _walkable(sandbox: Sandbox) -> RemoteSandbox:
    if not isinstance(sandbox, RemoteSandbox):
        raise UserError(f"sandbox {sandbox.id} cannot list its files", "use the sandbox service")
    return sandbox


async def _content(sandbox: Sandbox, root: str, name: str) -> bytes | None:
    try:
        return await sandbox.read_file(posixpath.join(root, name))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def _shown(name: str) -> bool:
    """Not a cache of some tool, nor git's own files."""
    return not (_CACHES & set(name.split("/")) or name.endswith(".pyc"))


def unified(before: Mapping[str, bytes | None], after: Mapping[str, bytes | None]) -> bytes:
    """A patch that `git apply` takes. None stands for a file that is not there.

    Names come from the sandbox: one that points outside the tree or breaks a header is left out
    and said. Binary and very large files are named, not shown.
    """
    pieces: list[bytes] = []
    for name in sorted(after):
        if not _shown(name):
            continue
        if not _plain(name):
            pieces.append(f"Left out: {name!r} is no name for a patch\n".encode())
        elif before[name] != after[name]:
            pieces.append(_file_diff(name, before[name], after[name]))
    return b"".join(pieces)


def _plain(name: str) -> bool:
    parts = name.split("/")
    return name.isprintable() and ".." not in parts and "" not in parts and '"' not in name


def _file_diff(name: str, before: bytes | None, after: bytes | None) -> bytes:
    old, new = before or b"", after or b""
    if b"\0" in old or b"\0" in new or len(old) + len(new) > MAX_DIFF_BYTES:
        return f"Not shown: {name} is binary or very large\n".encode()
    path = name.encode("utf-8", "surrogateescape")
    header = b"diff --git a/%b b/%b\n" % (path, path)
    if before is None:
        header += b"new file mode 100644\n"
    if after is None:
        header += b"deleted file mode 100644\n"
    lines = difflib.diff_bytes(
        difflib.unified_diff,
        _lines(old),
        _lines(new),
        fromfile=b"/dev/null" if before is None else b"a/" + path,
        tofile=b"/dev/null" if after is None else b"b/" + path,
    )
    return header + b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def _lines(data: bytes) -> list[bytes]:
    """By LF alone, as patch tools count lines."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()
    return lines if last == b"\n" else [*lines, last[:-1]]
