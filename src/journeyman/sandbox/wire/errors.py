"""Errors across HTTP: the same type comes out at the client as was raised in the service."""

import os

from journeyman.sandbox.wire.api import ErrorBody
from journeyman.types.failure import (
    JourneymanError,
    SandboxError,
    SandboxExhausted,
    SandboxGone,
    UserError,
)

_TYPES: dict[str, type[JourneymanError]] = {
    kind.__name__: kind for kind in (SandboxExhausted, SandboxGone, SandboxError, UserError)
}
_STATUS = {
    "SandboxGone": 410,
    "SandboxExhausted": 410,
    "UserError": 400,
    "OSError": 409,
    "SandboxError": 503,
}


def describe(error: Exception) -> tuple[int, ErrorBody]:
    """HTTP status and body for an error."""
    if isinstance(error, OSError):
        path = error.filename if isinstance(error.filename, str) else ""
        body = ErrorBody(
            type="OSError",
            cause=error.strerror or str(error),
            errno=error.errno or 0,
            path=os.fsencode(path),
        )
        return _STATUS["OSError"], body
    if isinstance(error, JourneymanError):
        known = next((k.__name__ for k in type(error).__mro__ if k.__name__ in _TYPES), "")
        name = known or "SandboxError"
        return _STATUS[name], ErrorBody(type=name, cause=error.cause, cure=error.cure)
    raise error


def rebuild(body: ErrorBody) -> Exception:
    """The error to raise at the client."""
    if body.type == "OSError":
        # OSError picks FileNotFoundError and its kin by errno.
        return OSError(body.errno, body.cause, os.fsdecode(body.path))
    return _TYPES.get(body.type, SandboxError)(body.cause, body.cure)
