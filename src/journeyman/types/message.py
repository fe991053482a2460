"""What agent and model say to each other, before any tokenisation."""

from typing import Any, Literal

from journeyman.types.value import Value

Role = Literal["system", "user", "assistant", "tool"]


class ToolSpec(Value):
    """One tool as the model is told of it. `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolCall(Value):
    """One call parsed from sampled text. If it could not be parsed, `error` says why."""

    id: str
    name: str
    arguments: dict[str, Any]
    repairs: tuple[str, ...] = ()
    """What was mended to parse it; counted as the model's doing."""
    error: str | None = None


class Message(Value):
    """One message. `content` of an assistant is the sampled text, calls included, byte for byte:
    rendering an assistant message re-uses it and never re-serialises `tool_calls`."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
