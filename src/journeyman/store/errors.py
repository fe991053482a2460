"""What a database's errors mean to a person, and the ledger's own error."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from journeyman.types.failure import InfraError, JourneymanError, UserError


class LedgerError(JourneymanError):
    """A transition that the ledger does not allow: a bug, or a process that was replaced."""


_FULL = ("disk is full", "no space left on device", "disk quota exceeded", "could not extend file")
_LOCKED = ("database is locked", "database table is locked", "lock timeout", "deadlock detected")
_UNOPENABLE = ("unable to open database file",)
_READ_ONLY = ("readonly database", "read-only transaction")
_BROKEN = ("file is not a database", "malformed")
_UNREACHABLE = ("connection refused", "could not translate host", "server closed the connection")


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn the driver's errors that a person can act on into ours; others pass unchanged.

    `url` is shown in the message and must hold no password.
    """
    try:
        yield
    except DBAPIError as error:
        known = _known(url, str(error.orig))
        if known is None:
            raise
        raise known from error


def _known(url: str, text: str) -> JourneymanError | None:
    lower = text.lower()

    def says(fragments: tuple[str, ...]) -> bool:
        return any(fragment in lower for fragment in fragments)

    if says(_FULL):
        return UserError(
            f"the disk of the store {url} is full; the last change was undone",
            "free some space, or use a store on a larger disk, then resume",
        )
    if says(_LOCKED):
        return InfraError(
            f"the store {url} stayed locked by another process",
            "end the process that holds it (fuser FILE names it), or use PostgreSQL for many hosts",
        )
    if says(_UNOPENABLE):
        return UserError(
            f"the store {url} cannot be opened",
            "check that its directory exists and may be written, or name another store",
        )
    if says(_READ_ONLY):
        return UserError(f"the store {url} may not be written", "make its file writable")
    if says(_BROKEN):
        return UserError(
            f"the store {url} is not a whole SQLite database",
            "restore it from a copy, or move it away to start an empty one",
        )
    if says(_UNREACHABLE):
        return InfraError(f"the store {url} cannot be reached: {text.strip()}", "start the server")
    return None
