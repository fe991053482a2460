"""Who may use the service over the network, and the keys they show.

Keys are kept as digests: whoever reads the file cannot use it. They are 160 random bits, so a fast
digest will do. Their form is the one that `e2b` SDKs check for.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
from pathlib import Path

from journeyman.sandbox.service.record import LOCAL
from journeyman.types.failure import UserError

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PREFIX = "e2b_"
TENANTS_FILE = "tenants.json"
"""Its name in the state directory of a service."""


class Tenants:
    """A file that a running service and its commands share; read anew when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = -1
        self._digests: dict[str, str] = {}

    def names(self) -> list[str]:
        self._refresh()
        return sorted(self._digests)

    def find(self, key: str) -> str | None:
        """Whose key it is."""
        self._refresh()
        given = _digest(key)
        found = None
        for name, digest in self._digests.items():  # all of them, however early one fits
            if hmac.compare_digest(digest, given):
                found = name
        return found

    def add(self, name: str) -> str:
        """A new tenant's key, which is shown this once. Raises UserError for a name in use."""
        if not _NAME.fullmatch(name) or name == LOCAL:
            raise UserError(
                f"{name!r} is no name for a tenant",
                "Use small letters, digits and hyphens, up to 63 of them.",
            )
        self._refresh()
        if name in self._digests:
            raise UserError(f"there is a tenant {name!r} already", "Remove it for a new key.")
        key = _PREFIX + secrets.token_hex(20)
        self._write({**self._digests, name: _digest(key)})
        return key

    def remove(self, name: str) -> None:
        """Its key opens nothing from now on; its sandboxes live until their end."""
        self._refresh()
        if name not in self._digests:
            raise UserError(f"there is no tenant {name!r}", "See `journeyman sandbox tenant ls`.")
        self._write({other: digest for other, digest in self._digests.items() if other != name})

    def _refresh(self) -> None:
        try:
            changed_at = self._path.stat().st_mtime_ns
            if changed_at != self._read_at:
                self._digests = dict(json.loads(self._path.read_text(encoding="utf-8")))
                self._read_at = changed_at
        except FileNotFoundError:
            self._digests = {}
        except ValueError as error:
            raise UserError(f"{self._path} is unreadable: {error}", "Remove it.") from None

    def _write(self, digests: dict[str, str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(digests, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, self._path)
        self._digests = digests
        self._read_at = self._path.stat().st_mtime_ns


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
