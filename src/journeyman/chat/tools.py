"""How tools and tool calls look to the model: compact signatures, Hermes-style JSON calls."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from journeyman.types import ToolSpec

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


def render_tools(system: str, tools: Sequence[ToolSpec]) -> str:
    """The system text with the tools in it.

    Signatures instead of JSON Schemas: the five tools of the agent cost 47 tokens this way and
    447 as schemas (SmolLM2's vocabulary), and a small model learns their meaning from use.
    """
    if not tools:
        return system
    example = f'{OPEN}{{"name": tool, "arguments": {{...}}}}{CLOSE}'
    return "\n".join([system, example, *(_signature(tool) for tool in tools)])


def format_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call exactly as the model is taught to write it."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"{OPEN}{body}{CLOSE}"


def _signature(tool: ToolSpec) -> str:
    required = set(tool.parameters.get("required", ()))
    names = tool.parameters.get("properties", {})
    return f"{tool.name}({', '.join(n if n in required else f'{n}?' for n in names)})"
