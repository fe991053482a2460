"""The base of every value that crosses a package boundary."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """Immutable, compared by content, refuses unknown keys, serialises to JSON."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"
    )
