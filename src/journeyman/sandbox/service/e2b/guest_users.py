"""Names and numbers of a guest's users, as the guest's own files have them: data, never trusted."""

from dataclasses import dataclass

from journeyman.sandbox.node.files import Owner, read_file
from journeyman.sandbox.node.link import GuestFileError, GuestLink

_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class GuestUser:
    name: str
    owner: Owner
    home: str


@dataclass(frozen=True)
class GuestNames:
    """Of users and groups by number."""

    users: dict[str, GuestUser]
    groups: dict[int, str]

    def user_name(self, number: int) -> str:
        found = (user.name for user in self.users.values() if user.owner.user == number)
        return next(found, str(number))

    def group_name(self, number: int) -> str:
        return self.groups.get(number, str(number))


async def guest_names(link: GuestLink) -> GuestNames:
    """From /etc/passwd and /etc/group; lines that are none are left out."""
    users: dict[str, GuestUser] = {}
    for row in await _rows(link, "/etc/passwd"):
        if len(row) >= 7 and row[2].isdigit() and row[3].isdigit():
            owner = Owner(int(row[2]) & 0xFFFFFFFF, int(row[3]) & 0xFFFFFFFF)
            users.setdefault(row[0], GuestUser(row[0], owner, row[5] or "/"))
    groups = {
        int(row[2]): row[0]
        for row in reversed(await _rows(link, "/etc/group"))
        if len(row) >= 3 and row[2].isdigit()
    }
    return GuestNames(users, groups)


async def _rows(link: GuestLink, path: str) -> list[list[str]]:
    try:
        data = b"".join([piece async for piece in read_file(link, path, _MOST_BYTES)])
    except GuestFileError:
        return []
    return [line.split(":") for line in data.decode("utf-8", "replace").splitlines()]
