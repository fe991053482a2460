"""Who may speak to a fleet's manager: nodes, tenants, and hosts with a ticket. Only digests of
tokens are kept."""

import hashlib
import secrets
import time
from typing import Literal, NamedTuple

from sqlalchemy import Connection, delete, insert, or_, select

from journeyman.sandbox.fleet.schema import tokens
from journeyman.store.database import Database
from journeyman.types.failure import UserError

Kind = Literal["node", "tenant", "ticket"]
_TICKET_S = 1800.0
"""Metal takes a quarter of an hour to boot."""


class Bearer(NamedTuple):
    """Who sent a request. `name` is a node's id or a tenant's."""

    kind: Kind
    name: str


class Tokens:
    """Calls block for milliseconds, as those of the store do."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_tenant(self, name: str) -> str:
        """A token with which a tenant may create sandboxes. It is shown once."""
        with self._database.write() as connection:
            return _add(connection, "tenant", name)

    def add_ticket(self, valid_s: float = _TICKET_S) -> str:
        """Admits one host, once."""
        with self._database.write() as connection:
            return _add(connection, "ticket", "", time.time() + valid_s)

    def redeem(self, ticket: str, node: str) -> str:
        """A node's token for a ticket, which is void from then on.

        Raises UserError for a ticket that is void, and for a node that has a token already: a
        ticket does not let anybody take another node's place.
        """
        with self._database.write() as connection:
            if _find(connection, ticket) != ("ticket", ""):
                raise UserError(
                    "this ticket is void: it was used, or is too old",
                    "Get another one from the fleet's manager.",
                )
            taken = select(tokens.c.digest).where(tokens.c.kind == "node", tokens.c.name == node)
            if connection.scalar(taken) is not None:
                raise UserError(
                    f"node {node} has joined before",
                    "Start it with the token it got then, or remove the node from the fleet.",
                )
            connection.execute(delete(tokens).where(tokens.c.digest == _digest(ticket)))
            return _add(connection, "node", node)

    def bearer(self, token: str) -> Bearer | None:
        """None for a token that is not known or too old. Tickets are no tokens."""
        with self._database.read() as connection:
            found = _find(connection, token)
        return found if found and found.kind != "ticket" else None

    def revoke_node(self, node: str) -> None:
        """What it has is void. Idempotent."""
        with self._database.write() as connection:
            connection.execute(delete(tokens).where(tokens.c.kind == "node", tokens.c.name == node))


def _digest(token: str) -> str:
    # Tokens are 32 random bytes: nothing to guess, so nothing to slow down.
    return hashlib.sha256(token.encode()).hexdigest()


def _add(connection: Connection, kind: Kind, name: str, expires_at: float | None = None) -> str:
    token = secrets.token_urlsafe(32)
    row = {"digest": _digest(token), "kind": kind, "name": name, "expires_at": expires_at}
    connection.execute(insert(tokens).values(row))
    return token


def _find(connection: Connection, token: str) -> Bearer | None:
    # Looked up by digest: how long it takes tells nothing about tokens.
    valid = or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > time.time())
    query = select(tokens.c.kind, tokens.c.name).where(tokens.c.digest == _digest(token), valid)
    row = connection.execute(query).one_or_none()
    return Bearer(row.kind, row.name) if row else None
