"""What a tool is, and the workspace it works on."""

import posixpath
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from journeyman.types import Sandbox, ToolSpec


class Arguments(BaseModel):
    """Base of every tool's arguments: unknown names are refused, numbers may come as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


A = TypeVar("A", bound=Arguments)


class ToolRefusal(Exception):
    """The call cannot be done as asked. The message goes to the model: short, with the value."""


@dataclass(frozen=True)
class Workspace:
    """One session's sandbox as its tools see it."""

    sandbox: Sandbox
    workdir: str
    output_chars: int
    """Longest tool result, in characters."""
    command_s: float
    """Longest time any one tool may take, in seconds."""
    read_texts: dict[str, str] = field(default_factory=dict)
    """Guest path → text the model last saw of it through `read` or made with `edit`."""

    def path(self, given: str) -> str:
        """The absolute guest path. The sandbox is the boundary: any path in it may be named."""
        return posixpath.normpath(posixpath.join(self.workdir, given))

    def shown(self, path: str) -> str:
        """The path as the model is told of it: relative inside the working directory."""
        prefix = self.workdir.rstrip("/") + "/"
        return path.removeprefix(prefix)


@dataclass(frozen=True)
class Tool(Generic[A]):
    """One tool. `run` returns the text for the model, or raises ToolRefusal.

    `aliases` are names that models commonly use for an argument; `ornaments` are arguments of
    the same tool elsewhere that change nothing here and are dropped.
    """

    name: str
    description: str
    arguments: type[A]
    run: Callable[[Workspace, A], Awaitable[str]]
    read_only: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    ornaments: frozenset[str] = frozenset()

    def spec(self) -> ToolSpec:
        """The tool as the model is told of it."""
        schema: dict[str, Any] = self.arguments.model_json_schema()
        for noise in ("title", "description", "additionalProperties"):
            schema.pop(noise, None)
        for prop in schema.get("properties", {}).values():
            prop.pop("title", None)
        schema.setdefault("properties", {})
        return ToolSpec(name=self.name, description=self.description, parameters=schema)

    @property
    def signature(self) -> str:
        """`read(file_path, offset?, limit?)`."""
        fields = self.arguments.model_fields
        names = (n if f.is_required() else f"{n}?" for n, f in fields.items())
        return f"{self.name}({', '.join(names)})"
