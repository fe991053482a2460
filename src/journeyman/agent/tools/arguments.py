"""Bind a parsed call to a tool's arguments: repaired where there is one meaning, else refused."""

from typing import Any

from pydantic import ValidationError

from journeyman.agent.tools.tool import A, Tool, ToolRefusal


def bind(tool: Tool[A], given: dict[str, Any]) -> tuple[A, tuple[str, ...]]:
    """The validated arguments and the repairs it took. Raises ToolRefusal with the signature."""
    repairs: list[str] = []
    named = _rename(tool, given, repairs)
    try:
        arguments = tool.arguments.model_validate(named)
    except ValidationError as error:
        raise ToolRefusal(f"{_complaint(error)}; use {tool.signature}") from None
    for name, value in named.items():
        if isinstance(value, str) and "\0" in value:
            raise ToolRefusal(f"{name} holds a NUL character")
        bound = getattr(arguments, name)
        if type(bound) is not type(value):
            repairs.append(f"{name} read as {type(bound).__name__}")
    return arguments, tuple(repairs)


def _rename(tool: Tool[Any], given: dict[str, Any], repairs: list[str]) -> dict[str, Any]:
    known = tool.arguments.model_fields
    named: dict[str, Any] = {}
    for name, value in given.items():
        target = name if name in known else tool.aliases.get(name, name)
        if target not in known and name in tool.ornaments:
            repairs.append(f"{name} dropped")
            continue
        if value is None and target in known and not known[target].is_required():
            repairs.append(f"{name} null dropped")
            continue
        if target != name:
            if target in given or target in named:
                raise ToolRefusal(f"{name} and {target} are one; use {tool.signature}")
            repairs.append(f"{name} renamed {target}")
        named[target] = value
    return named


def _complaint(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"])) or "arguments"
    match first["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden":
            return f"{name} is unknown"
    return f"{name}: {first['msg'].lower()}"
