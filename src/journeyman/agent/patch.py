"""What a session changed, as a unified diff. Only text is produced; no file is ever written."""

import difflib
from collections.abc import Mapping

MAX_DIFF_BYTES = 2 << 20

_CACHES = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".git"}


def unified(before: Mapping[str, bytes | None], after: Mapping[str, bytes | None]) -> bytes:
    """A patch that `git apply` takes. None stands for a file that is not there.

    Names come from the sandbox: one that points outside the tree or breaks a header is left out
    and said. Binary and very large files are named, not shown.
    """
    pieces: list[bytes] = []
    for name in sorted(after):
        if _CACHES & set(name.split("/")) or name.endswith(".pyc"):
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
