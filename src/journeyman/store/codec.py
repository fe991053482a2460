"""How values lie in the store: zlib over JSON, checked to read back equal before it is kept."""

import zlib
from typing import TypeVar

from pydantic import ValidationError

from journeyman.types.failure import JourneymanError
from journeyman.types.value import Value

AnyValue = TypeVar("AnyValue", bound=Value)


def pack(value: Value) -> bytes:
    """Raises JourneymanError if the value would not read back equal (a NaN, an infinity)."""
    text = value.model_dump_json().encode()
    name = type(value).__name__
    try:
        same = type(value).model_validate_json(text) == value
    except ValidationError as error:
        raise JourneymanError(f"this {name} cannot be stored exactly: {error}") from error
    if not same:
        raise JourneymanError(f"this {name} does not read back equal from its JSON")
    return zlib.compress(text, 6)


def unpack(kind: type[AnyValue], body: bytes) -> AnyValue:
    """The value that `pack` was given. Raises JourneymanError if the bytes were damaged."""
    try:
        return kind.model_validate_json(zlib.decompress(body))
    except (zlib.error, ValidationError) as error:
        raise JourneymanError(f"a stored {kind.__name__} is damaged: {error}") from error
