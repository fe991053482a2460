"""Where a request to a sandbox is going, and with whose rights."""

import base64
import binascii
import hmac
import posixpath
import re
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from journeyman.sandbox.node.link import GuestLink
from journeyman.sandbox.service.e2b.connect_rpc import ConnectError
from journeyman.sandbox.service.e2b.guest_users import GuestNames, GuestUser, guest_names
from journeyman.sandbox.service.living import LivingSandbox
from journeyman.sandbox.service.manager import SandboxManager
from journeyman.types.failure import SandboxGone

ENVD_PORT = 49983
_HOST = re.compile(r"(?P<port>\d{1,5})-(?P<sandbox>sb-[0-9a-f]+)\.")


@dataclass(frozen=True)
class Place:
    """A port of a sandbox; of `ENVD_PORT` it is the daemon's, which is us."""

    sandbox_id: str
    port: int


def place_of(connection: HTTPConnection) -> Place | None:
    """By routing headers, or by a host name `PORT-SANDBOX.DOMAIN`. None for neither."""
    headers = connection.headers
    if sandbox := headers.get("e2b-sandbox-id"):
        port = headers.get("e2b-sandbox-port", "")
        return Place(sandbox, int(port) if port.isdecimal() and len(port) < 6 else ENVD_PORT)
    if found := _HOST.match(headers.get("host", "")):
        return Place(found["sandbox"], int(found["port"]))
    return None


def find(manager: SandboxManager, place: Place) -> LivingSandbox:
    """Raises SandboxGone, for one that sleeps and does not wake on use too."""
    sandbox = manager.get(place.sandbox_id)
    claim = sandbox.record.claim
    if not claim.access_token:  # no sandbox of this face
        raise SandboxGone(f"sandbox {place.sandbox_id} is gone: this service does not know it")
    if sandbox.record.state == "hibernated" and not claim.wakes_on_use:
        raise SandboxGone(f"sandbox {place.sandbox_id} is paused")
    return sandbox


def may_enter(sandbox: LivingSandbox, connection: HTTPConnection) -> bool:
    """Whether the request shows the sandbox's access token."""
    given = connection.headers.get("x-access-token", "").encode()
    return hmac.compare_digest(given, sandbox.record.claim.access_token.encode())


def named_user(connection: HTTPConnection, sandbox: LivingSandbox) -> str:
    """From the query or from Basic authorisation, whose password is nobody's."""
    if name := connection.query_params.get("username"):
        return name
    kind, _, encoded = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            name = base64.b64decode(encoded).decode().partition(":")[0]
        except (binascii.Error, UnicodeDecodeError):
            raise ConnectError("unauthenticated", "the authorisation is unreadable") from None
    return name or sandbox.record.claim.user


async def user_of(link: GuestLink, name: str) -> tuple[GuestUser, GuestNames]:
    """Raises ConnectError for a user the guest does not have."""
    names = await guest_names(link)
    user = names.users.get(name)
    if user is None:
        raise ConnectError("unauthenticated", f"invalid username: '{name}'")
    return user, names


def resolve(path: str, user: GuestUser) -> str:
    """Against the user's home, where it is relative or begins with `~`."""
    if path in ("", "~"):
        return user.home
    if path.startswith("~/"):
        path = path[2:]
    return posixpath.normpath(posixpath.join(user.home, path))
