"""What earlier builds found out, by content: a rebuild, or a resumed build, asks here first."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from journeyman.types import UserError


def content_key(*parts: str | bytes) -> str:
    """A name for a result that depends on exactly `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(f"{len(data)}\0".encode() + data)
    return digest.hexdigest()


class Journal:
    """An append-only file of JSON lines {"key": …, "value": …}; the last line of a key counts.

    A line cut off by a crash is passed over. One process at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {}

    @contextmanager
    def open(self) -> Iterator["Journal"]:
        """Raises UserError if another process builds with the same journal."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"another build uses {self._path}", "Wait until it has ended."
                ) from None
            file.seek(0)
            data = file.read()
            for line in data.splitlines():
                self._take(line)
            if data and not data.endswith(b"\n"):
                file.write(b"\n")
            self._file = file
            yield self

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            self._values[entry["key"]] = entry["value"]
        except (ValueError, KeyError, TypeError):
            return  # cut off by a crash: it will be found out again

    def get(self, key: str) -> Any | None:
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._file.write(json.dumps({"key": key, "value": value}).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
