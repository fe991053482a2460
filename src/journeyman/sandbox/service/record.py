"""What is on disk about one sandbox: enough to find it or reap it after a crash."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from journeyman.sandbox.node.driver import Limits
from journeyman.sandbox.wire.api import SandboxState
from journeyman.types.value import Value

_NAME = "record.json"
LOCAL = "local"
"""The tenant of whoever holds the token of the service's own socket."""


class Term(Value):
    """How long a sandbox lives. With `ends_at` (Unix seconds) until then, however much it is
    used: then it is closed, or hibernated to be kept; while hibernated it does not end. Without
    it, the lease is renewed by use."""

    ends_at: float = 0.0
    at_end: Literal["close", "hibernate"] = "close"


class Claim(Value):
    """Whose sandbox it is and what that tenant says of it. `access_token` opens the way into the
    guest for whoever shows it; it never enters the guest."""

    tenant: str = LOCAL
    metadata: dict[str, str] = {}
    access_token: str = Field(default="", repr=False)
    wakes_on_use: bool = True
    user: str = "root"


class SandboxRecord(Value):
    """Written before what it announces is done. `snapshot` is the directory name of the snapshot
    a hibernated sandbox continues from."""

    id: str
    state: SandboxState
    template: str
    parent: str = ""
    created_at: float
    lease_s: float
    epoch: int = 0
    snapshot: str = ""
    rootfs: str
    agent: str
    limits: Limits
    env: dict[str, str] = {}
    stands_still: bool = False
    term: Term = Term()
    claim: Claim = Claim()

    def write(self, directory: Path) -> None:
        """Atomically and durably."""
        temporary = directory / f".{_NAME}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(self.model_dump_json())
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, directory / _NAME)


def read_records(state: Path) -> list[tuple[Path, SandboxRecord | None]]:
    """Every sandbox directory with its record; None where creation had not got that far."""
    found: list[tuple[Path, SandboxRecord | None]] = []
    for directory in sorted(state.iterdir()):
        try:
            text = (directory / _NAME).read_bytes()
        except FileNotFoundError:
            found.append((directory, None))
            continue
        found.append((directory, SandboxRecord.model_validate_json(text)))
    return found
