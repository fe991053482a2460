"""`read`: lines of a file, plain, as they are to be copied into an edit."""

from pydantic import Field

from journeyman.agent.tools.files import read_text
from journeyman.agent.tools.text import clip
from journeyman.agent.tools.tool import Arguments, Tool, ToolRefusal, Workspace


class ReadArguments(Arguments):
    file_path: str
    offset: int = Field(default=1, ge=0)
    limit: int | None = Field(default=None, ge=1)


async def read(workspace: Workspace, arguments: ReadArguments) -> str:
    """A header "first-last of count", then the lines without numbers.

    Numbers before each line would cost a fifth of a small budget and be copied into edits.
    """
    path = workspace.path(arguments.file_path)
    file = await read_text(workspace, path)
    workspace.read_texts[path] = file.text
    lines = split_lines(file.text)
    if not lines:
        return "empty file"
    first = max(arguments.offset, 1)
    if first > len(lines):
        raise ToolRefusal(f"{workspace.shown(path)} has only {len(lines)} lines")
    last = len(lines) if arguments.limit is None else min(first + arguments.limit - 1, len(lines))
    shown = _fit(lines[first - 1 : last], workspace.output_chars)
    return "\n".join([f"{first}-{first + len(shown) - 1} of {len(lines)}", *shown])


def split_lines(text: str) -> list[str]:
    """Lines by LF or CRLF only (a form feed or U+2028 ends no line in a source file)."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _fit(lines: list[str], limit: int) -> list[str]:
    """Whole lines up to `limit` characters, at least one."""
    shown: list[str] = []
    room = limit
    for line in lines:
        clipped = clip(line, limit)
        room -= len(clipped) + 1
        if room < 0 and shown:
            break
        shown.append(clipped)
    return shown


READ = Tool(
    name="read",
    description="Show lines of a file, from line `offset` on.",
    arguments=ReadArguments,
    run=read,
    read_only=True,
    aliases={
        "path": "file_path",
        "file": "file_path",
        "filename": "file_path",
        "target_file": "file_path",
        "start": "offset",
        "start_line": "offset",
        "line": "offset",
        "num_lines": "limit",
        "count": "limit",
    },
    ornaments=frozenset({"description", "explanation"}),
)
