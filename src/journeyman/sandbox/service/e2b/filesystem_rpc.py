"""`filesystem.Filesystem`: names in a sandbox's file system. Contents travel by `files_http`."""

import errno
import posixpath
import stat
from datetime import UTC, datetime
from typing import Any

from journeyman.sandbox.node import files
from journeyman.sandbox.node.link import GuestFileError, GuestLink
from journeyman.sandbox.service.e2b.connect_rpc import ConnectError, Message
from journeyman.sandbox.service.e2b.guest_users import GuestNames, GuestUser
from journeyman.sandbox.service.e2b.place import resolve, user_of
from journeyman.sandbox.service.living import LivingSandbox

_TYPES = {"f": "FILE_TYPE_FILE", "d": "FILE_TYPE_DIRECTORY", "l": "FILE_TYPE_SYMLINK"}
_MOST_DEPTH = 64
_CODES = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "invalid_argument",
    errno.EISDIR: "invalid_argument",
    errno.EINVAL: "invalid_argument",
    errno.EEXIST: "already_exists",
    errno.ENOTEMPTY: "already_exists",
    errno.ENOSPC: "resource_exhausted",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
}


def refused(error: GuestFileError, path: str) -> ConnectError:
    code = _CODES.get(error.errno or 0, "internal")
    return ConnectError(code, f"path '{path}': {error.strerror}")


class _Guest:
    """One call's view of a guest: its link, the caller, the names of numbers."""

    def __init__(self, link: GuestLink, user: GuestUser, names: GuestNames) -> None:
        self.link = link
        self.user = user
        self._names = names

    async def info(self, path: str) -> Message:
        """Raises ConnectError."""
        try:
            entry = await files.stat_file(self.link, path)
        except GuestFileError as error:
            raise refused(error, path) from None
        return await self.describe(path, entry)

    async def describe(self, path: str, entry: files.Entry) -> Message:
        kind = entry.kind
        described: dict[str, Any] = {}
        if kind == "l":
            described["symlinkTarget"] = entry.target.decode("utf-8", "replace")
            described["isSymlink"] = True
            try:
                kind = (await files.stat_file(self.link, path, follow=True)).kind
            except GuestFileError:
                kind = "l"  # it leads nowhere
        modified = datetime.fromtimestamp(entry.mtime_ns / 1e9, UTC)
        return {
            "name": posixpath.basename(path) or "/",
            "type": _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
            "path": path,
            "size": str(entry.size),
            "mode": entry.mode & 0o7777,
            "permissions": _permissions(entry),
            "owner": self._names.user_name(entry.user),
            "group": self._names.group_name(entry.group),
            "modifiedTime": modified.isoformat().replace("+00:00", "Z"),
            **described,
        }

    async def below(self, path: str, depth: int) -> list[Message]:
        """Every entry down to `depth`, links not followed."""
        found: list[Message] = []
        for entry in await files.list_directory(self.link, path):
            name = entry.name.decode("utf-8", "surrogateescape")
            inside = posixpath.join(path, name)
            found.append(await self.describe(inside, entry))
            if depth > 1 and entry.kind == "d":
                found += await self.below(inside, depth - 1)
        return found


def _permissions(entry: files.Entry) -> str:
    kinds = {"d": stat.S_IFDIR, "l": stat.S_IFLNK}
    return stat.filemode(kinds.get(entry.kind, stat.S_IFREG) | entry.mode)


async def stat_path(sandbox: LivingSandbox, message: Message, name: str) -> Message:
    async with sandbox.guest() as link:
        guest = _Guest(link, *await user_of(link, name))
        return {"entry": await guest.info(resolve(message.get("path", ""), guest.user))}


async def make_dir(sandbox: LivingSandbox, message: Message, name: str) -> Message:
    async with sandbox.guest() as link:
        guest = _Guest(link, *await user_of(link, name))
        path = resolve(message.get("path", ""), guest.user)
        try:
            there = await files.stat_file(link, path, follow=True)
        except GuestFileError:
            there = None
        if there is not None:
            code = "already_exists" if there.kind == "d" else "invalid_argument"
            raise ConnectError(code, f"path '{path}' already exists")
        try:
            await files.make_directory(link, path, guest.user.owner)
        except GuestFileError as error:
            raise refused(error, path) from None
        return {"entry": await guest.info(path)}


async def move(sandbox: LivingSandbox, message: Message, name: str) -> Message:
    async with sandbox.guest() as link:
        guest = _Guest(link, *await user_of(link, name))
        source = resolve(message.get("source", ""), guest.user)
        target = resolve(message.get("destination", ""), guest.user)
        try:
            await files.rename(link, source, target, guest.user.owner)
        except GuestFileError as error:
            raise refused(error, source) from None
        return {"entry": await guest.info(target)}


async def list_dir(sandbox: LivingSandbox, message: Message, name: str) -> Message:
    depth = min(int(message.get("depth", 1)) or 1, _MOST_DEPTH)
    async with sandbox.guest() as link:
        guest = _Guest(link, *await user_of(link, name))
        path = resolve(message.get("path", ""), guest.user)
        try:
            there = await files.stat_file(link, path, follow=True)
            if there.kind != "d":
                raise ConnectError("invalid_argument", f"path '{path}' is not a directory")
            return {"entries": await guest.below(path, depth)}
        except GuestFileError as error:
            raise refused(error, path) from None


async def remove(sandbox: LivingSandbox, message: Message, name: str) -> Message:
    async with sandbox.guest() as link:
        user, _ = await user_of(link, name)
        path = resolve(message.get("path", ""), user)
        try:
            await files.remove(link, path)
        except GuestFileError as error:
            if error.errno != errno.ENOENT:
                raise refused(error, path) from None
        return {}
