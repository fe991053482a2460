"""A person's repository as a tar archive: what git would track, nothing from outside the tree."""

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from journeyman.types import UserError

MAX_BYTES = 256 << 20

_SKIPPED = {".git", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".mypy_cache"}


def pack(directory: Path) -> bytes:
    """Tracked and untracked files that git does not ignore; without git, all but caches.

    Symbolic links are packed as links when they stay inside the tree, and left out otherwise.
    Never changes the directory. Raises UserError when it is none or too large.
    """
    root = directory.resolve()
    if not root.is_dir():
        raise UserError(f"{directory} is no directory", "name the repository with --repo")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(set(_names(root))):
            path = root / name
            if not (path.is_file() or path.is_symlink()) or not _inside(root, path):
                continue  # gone since it was listed, a submodule, a device, or a way out
            tar.add(path, arcname=name, recursive=False, filter=_anonymous)
            if buffer.tell() > MAX_BYTES:
                raise UserError(
                    f"{directory} holds more than {MAX_BYTES >> 20} MB",
                    "let .gitignore leave out what the agent does not need",
                )
    return buffer.getvalue()


def _names(root: Path) -> Iterator[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        listed = None
    if listed is not None and listed.returncode == 0:
        yield from (os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
        return
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in _SKIPPED]
        links = [f for f in folders if (Path(folder) / f).is_symlink()]
        for name in [*files, *links]:
            yield os.path.relpath(os.path.join(folder, name), root)


def _inside(root: Path, path: Path) -> bool:
    """Whether neither the file nor a link on its way leads out of the tree."""
    if ".git" in path.relative_to(root).parts:
        return False
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a loop of links
        return False


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without the person's user name and ids."""
    if not (member.isfile() or member.issym()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
