"""`python -m journeyman.sandbox.node.image_unpack ROOT < layer.tar`: apply one layer to a tree.

A process of its own, because it changes its root to the tree before it reads the first name: a
layer may hold any path and any link, and inside that root none of them leads out. Devices are
left out; sandboxes have their own.
"""

import os
import resource
import shutil
import stat
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import IO

_MOST_ENTRIES = 2_000_000
_MOST_FILE_BYTES = 20 << 30
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


def apply_layer(layer: IO[bytes]) -> None:
    """Apply a layer below `/`. The file is read twice: what a layer removes is removed from the
    layers below it, wherever in the layer that is said."""
    for name in _names(layer):
        path = PurePosixPath(name)
        if path.name == _OPAQUE:
            _empty(str(path.parent))
        elif path.name.startswith(_WHITEOUT):
            _remove(str(path.with_name(path.name.removeprefix(_WHITEOUT))))
    layer.seek(0)
    times: list[tuple[str, float]] = []
    with tarfile.open(fileobj=layer, mode="r|") as archive:
        for member in archive:
            name = _inside(member.name)
            if PurePosixPath(name).name.startswith(_WHITEOUT) or name == "/":
                continue
            _place(archive, member, name)
            if member.isdir():
                times.append((name, member.mtime))
    for name, seconds in reversed(times):  # contents change a directory's time
        with suppress(OSError):
            os.utime(name, (seconds, seconds))


def _names(layer: IO[bytes]) -> Iterator[str]:
    with tarfile.open(fileobj=layer, mode="r|") as archive:
        for number, member in enumerate(archive):
            if number >= _MOST_ENTRIES:
                raise ValueError(f"a layer holds more than {_MOST_ENTRIES} files")
            yield _inside(member.name)


def _inside(name: str) -> str:
    """An absolute path without `..`: the kernel would clamp those at our root, but a whiteout of
    `/x/..` would name another directory than it seems to."""
    parts = [part for part in PurePosixPath("/", name).parts[1:] if part != "."]
    if ".." in parts or "\0" in name:
        raise ValueError(f"a layer holds the path {name!r}")
    return "/" + "/".join(parts)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    # A link of a lower layer may lead to a directory that nobody has made yet.
    os.makedirs(os.path.realpath(os.path.dirname(path)), exist_ok=True)
    kept = member.isdir() and os.path.isdir(path) and not os.path.islink(path)
    if not kept:
        _remove(path)
    if member.isdir():
        if not kept:
            os.mkdir(path)
    elif member.issym():
        os.symlink(member.linkname, path)
    elif member.islnk():
        os.link(_inside(member.linkname), path, follow_symlinks=False)
        return  # the file it names has its owner and mode already
    elif member.isreg():
        source = archive.extractfile(member)
        with open(path, "xb") as target:
            if source is not None:
                shutil.copyfileobj(source, target, 1 << 20)
    elif member.isfifo():
        os.mkfifo(path)
    else:
        return
    os.lchown(path, member.uid, member.gid)
    if not member.issym():
        os.chmod(path, stat.S_IMODE(member.mode))  # after the owner, whose change drops set-uid
        os.utime(path, (member.mtime, member.mtime))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _empty(directory: str) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(directory):
            _remove(os.path.join(directory, name))


def main() -> int:
    root = sys.argv[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    # What would be imported on first use must be here before the library is out of sight.
    "".encode("idna"), "".encode("utf-8", "surrogateescape")
    os.chroot(root)
    os.chdir("/")
    try:
        apply_layer(sys.stdin.buffer)
    except (OSError, ValueError, tarfile.TarError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
