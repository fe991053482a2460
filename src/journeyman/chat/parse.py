"""Find the tool calls in sampled text. A total function: any text gives a message.

What has one meaning is repaired and the repair recorded; everything else becomes a call with an
`error`. Both are the model's doing.
"""

import re
from typing import Any

from journeyman.chat.lenient_json import Unreadable, read_object
from journeyman.chat.tools import CLOSE, OPEN
from journeyman.types import Message, ToolCall

_FENCE = re.compile(r"\A```(?:json)?\s*\n(.*?)\n?```\Z", re.DOTALL)
_NAME_KEYS = ("name", "tool", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")


def parse_reply(text: str) -> Message:
    """An assistant message holding `text` byte for byte and the calls found in it."""
    bodies = list(_call_bodies(text))
    calls = tuple(
        _read_call(f"call_{number}", body, list(repairs), cut_off)
        for number, (body, repairs, cut_off) in enumerate(bodies, start=1)
    )
    return Message(role="assistant", content=text, tool_calls=calls)


def _call_bodies(text: str) -> list[tuple[str, tuple[str, ...], bool]]:
    """(body, repairs, cut off) of each call. A body may be cut off only at the end of the text."""
    pieces = text.split(OPEN)[1:]
    if not pieces:
        return _bare_call(text)
    bodies: list[tuple[str, tuple[str, ...], bool]] = []
    for index, piece in enumerate(pieces):
        body, close, _ = piece.partition(CLOSE)
        repairs = () if close else ("closing tag added",)
        bodies.append((body, repairs, not close and index == len(pieces) - 1))
    return bodies


def _bare_call(text: str) -> list[tuple[str, tuple[str, ...], bool]]:
    """A reply that is nothing but a call without its tags."""
    stripped = text.strip()
    body = stripped.removesuffix(CLOSE)
    if fenced := _FENCE.match(stripped):
        body = fenced.group(1)
    if not re.match(r'\s*\{\s*["\'](?:name|tool|function)["\']\s*:', body):
        return []
    return [(body, ("tags added",), body is stripped or body == stripped)]


def _read_call(call_id: str, body: str, repairs: list[str], cut_off: bool) -> ToolCall:
    try:
        value, mended = read_object(body, cut_off=cut_off)
        name, arguments, renamed = _name_and_arguments(value)
    except Unreadable as error:
        return ToolCall(id=call_id, name="", arguments={}, repairs=tuple(repairs), error=str(error))
    return ToolCall(
        id=call_id, name=name, arguments=arguments, repairs=(*repairs, *mended, *renamed)
    )


def _name_and_arguments(value: dict[str, Any]) -> tuple[str, dict[str, Any], list[str]]:
    repairs: list[str] = []
    fields = dict(value)
    function = fields.get("function")
    if isinstance(function, dict):
        fields = dict(function)
        repairs.append("function unwrapped")
    name = _take(fields, _NAME_KEYS, repairs)
    if not isinstance(name, str) or not name:
        raise Unreadable("the call has no name")
    arguments = _take(fields, _ARGUMENT_KEYS, repairs)
    if isinstance(arguments, str):
        arguments, mended = read_object(arguments, cut_off=False)
        repairs += ["arguments unquoted", *mended]
    if arguments is None:
        # {"name": "submit"} and {"name": "bash", "command": "ls"} have one meaning each.
        arguments, fields = fields, {}
        repairs.append("arguments wrapped")
    fields.pop("id", None)
    if fields:
        raise Unreadable(f"unexpected keys beside arguments: {', '.join(map(str, fields))}")
    if not isinstance(arguments, dict):
        raise Unreadable("arguments is not an object")
    return name, arguments, repairs


def _take(fields: dict[str, Any], keys: tuple[str, ...], repairs: list[str]) -> Any:
    """Remove and return the first of `keys`; any but the first name is a repair."""
    for key in keys:
        if key in fields:
            if key != keys[0]:
                repairs.append(f"{key} renamed {keys[0]}")
            return fields.pop(key)
    return None
