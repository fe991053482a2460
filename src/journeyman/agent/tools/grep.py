"""`grep`: ripgrep in the sandbox."""

import re

from journeyman.agent.tools.bash import ENVIRONMENT
from journeyman.agent.tools.text import clean, clip
from journeyman.agent.tools.tool import Arguments, Tool, ToolRefusal, Workspace
from journeyman.types import ExecResult

_LIMIT_S = 20.0
_LINE_CHARS = 200
_AROUND_CHARS = 80
_LONG = ("[... omitted end of long line]", " more matches]", " more match]")
_PLACE = re.compile(r".*?:\d+:")


class GrepArguments(Arguments):
    pattern: str
    path: str = "."


async def grep(workspace: Workspace, arguments: GrepArguments) -> str:
    """`path:line:text` of each match, as many as fit; what was left out is said."""
    result = await _ripgrep(workspace, arguments, arguments.pattern)
    lines = _lines(result)
    if any(line.endswith(_LONG) for line in lines):
        lines = await _around_matches(workspace, arguments, lines)
    shown = _fit(lines, workspace.output_chars)
    if result.timed_out:
        return "\n".join([*shown, f"partial: stopped after {result.duration_s:.0f} s"])
    if not shown:
        if result.exit_code == 1:
            return "no match"
        raise ToolRefusal(_complaint(clean(result.text), arguments))
    if result.exit_code == 2 or result.dropped_bytes:
        shown.append("partial: some files were not searched")
    return "\n".join(shown)


async def _ripgrep(
    workspace: Workspace, arguments: GrepArguments, pattern: str, *options: str
) -> ExecResult:
    return await workspace.sandbox.exec(
        [
            *("rg", "--line-number", "--no-heading", "--with-filename", "--color=never"),
            *("--sort=path", f"--max-columns={_LINE_CHARS}", "--max-columns-preview", *options),
            *("--regexp", pattern, "--", arguments.path or "."),
        ],
        cwd=workspace.workdir,
        env=ENVIRONMENT,
        timeout_s=min(_LIMIT_S, workspace.command_s),
    )


def _lines(result: ExecResult) -> list[str]:
    lines = clean(result.stdout.decode("utf-8", "replace")).strip("\n").split("\n")
    return [line.removeprefix("./") for line in lines if line]


async def _around_matches(
    workspace: Workspace, arguments: GrepArguments, lines: list[str]
) -> list[str]:
    """Over-long lines again, this time the part of each around its first match."""
    around = f".{{0,{_AROUND_CHARS}}}(?:{arguments.pattern}).{{0,{_AROUND_CHARS}}}"
    pieces: dict[str, str] = {}
    for line in _lines(await _ripgrep(workspace, arguments, around, "--only-matching")):
        pieces.setdefault(_place(line), line)
    return [pieces.get(_place(line), line) if line.endswith(_LONG) else line for line in lines]


def _place(line: str) -> str:
    """`path:line:` of a result."""
    match = _PLACE.match(line)
    return match.group(0) if match else line


def _complaint(text: str, arguments: GrepArguments) -> str:
    if "regex parse error" in text:
        return f"{arguments.pattern!r} is not a regular expression"
    if "No such file" in text:
        return f"no file {arguments.path}"
    return clip(" ".join(text.split()))


def _fit(lines: list[str], limit: int) -> list[str]:
    shown: list[str] = []
    room = limit
    for line in lines:
        room -= len(line) + 1
        if room < 0 and shown:
            return [*shown, f"and {len(lines) - len(shown)} more"]
        shown.append(line)
    return shown


GREP = Tool(
    name="grep",
    description="Search files for a regular expression.",
    arguments=GrepArguments,
    run=grep,
    read_only=True,
    aliases={"query": "pattern", "regex": "pattern", "file_path": "path", "directory": "path"},
    ornaments=frozenset({"description", "explanation", "output_mode", "-n"}),
)
