"""The HTTP contract of the sandbox service: one place for both ends.

Bytes travel as base64. Names that may hold any byte (arguments, variables, paths) travel as bytes
too; `os.fsencode` and `os.fsdecode` translate.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from journeyman.types.value import Value

API = "/v1"
SandboxState = Literal["creating", "running", "hibernated"]


class CreateRequest(Value):
    template: str
    files: Mapping[str, bytes] = {}
    lease_s: float = Field(default=600.0, gt=0)
    stands_still: bool = False


class SandboxInfo(Value):
    id: str
    state: SandboxState
    template: str
    parent: str = ""
    created_at: float
    lease_s: float
    limits_enforced: tuple[str, ...] = ()


class ExecRequest(Value):
    argv: tuple[bytes, ...] = Field(min_length=1)
    cwd: bytes = b"/"
    env: tuple[tuple[bytes, bytes], ...] = ()
    stdin: bytes = b""
    timeout_s: float = Field(default=60.0, gt=0, le=86_400)
    kept_bytes: int = Field(default=256 << 10, gt=0, le=16 << 20)


class PathRequest(Value):
    path: bytes


class RenameRequest(Value):
    source: bytes
    target: bytes


class FileEntry(Value):
    """One file as `lstat` sees it. `kind` is f, d, l or o (anything else)."""

    name: bytes
    kind: str
    mode: int
    size: int
    mtime_ns: int
    target: bytes = b""


class TemplateInfo(Value):
    id: str


class ImageInfo(Value):
    id: str


class Health(Value):
    driver: str
    isolation: str
    limits_enforced: tuple[str, ...]
    sandboxes: int


class ErrorBody(Value):
    """`type` is a class of `journeyman.types.failure`, or OSError (then `errno` and `path`)."""

    type: str
    cause: str
    cure: str = ""
    errno: int = 0
    path: bytes = b""
