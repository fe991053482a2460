"""`edit`: replace text that stands exactly once. What was not asked for stays byte for byte."""

import difflib
import stat

from journeyman.agent.tools.files import TextFile, read_text
from journeyman.agent.tools.matching import Replacement, apply, find, line_of, nearest
from journeyman.agent.tools.text import clip
from journeyman.agent.tools.tool import Arguments, Tool, ToolRefusal, Workspace

_REMEMBERED_CHARS = 1 << 20
_NAMED_LINES = 10


class EditArguments(Arguments):
    file_path: str
    old_string: str
    new_string: str
    replace_all: bool = False


async def edit(workspace: Workspace, arguments: EditArguments) -> str:
    """Says which lines were edited. Raises ToolRefusal and changes nothing otherwise."""
    path = workspace.path(arguments.file_path)
    if not arguments.old_string:
        return await _create(workspace, path, arguments.new_string)
    file = await read_text(workspace, path)
    _refuse_stale(workspace, path, file.text)
    places = _chosen(file.text, workspace.shown(path), arguments)
    changed = apply(file.text, places)
    if changed == file.text:
        raise ToolRefusal("old_string and new_string are equal")
    await _write(workspace, path, file, changed)
    numbers = _line_numbers(file.text, places)
    note = f" ({places[0].note})" if places[0].note else ""
    return f"edited line{'s' if ',' in numbers else ''} {numbers}{note}"


def _chosen(text: str, shown: str, arguments: EditArguments) -> tuple[Replacement, ...]:
    places = find(text, arguments.old_string, arguments.new_string).places
    if not places:
        close = nearest(text, arguments.old_string)
        hint = f"; line {close[0]} is:\n{clip(close[1])}" if close else ""
        raise ToolRefusal(f"old_string is not in {shown}{hint}")
    if len(places) == 1 or (arguments.replace_all and not places[0].note):
        return places
    raise ToolRefusal(
        f"old_string is there {len(places)} times, lines {_line_numbers(text, places)}: "
        "add context or set replace_all"
    )


def _line_numbers(text: str, places: tuple[Replacement, ...]) -> str:
    numbers = [str(line_of(text, place.start)) for place in places[:_NAMED_LINES]]
    more = ["…"] if len(places) > _NAMED_LINES else []
    return ", ".join([*numbers, *more])


def _refuse_stale(workspace: Workspace, path: str, text: str) -> None:
    """An edit made from a text that is no longer there is refused once, with what changed."""
    seen = workspace.read_texts.get(path)
    if seen is None or seen == text:
        return
    _remember(workspace, path, text)
    before, after = seen.split("\n"), text.split("\n")
    first = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    changed = "\n".join(
        clip(line)
        for line in difflib.ndiff(before[first : first + 3], after[first : first + 3])
        if line[:1] in "+-"
    )
    raise ToolRefusal(f"the file changed since it was read, at line {first + 1}:\n{changed}")


async def _write(workspace: Workspace, path: str, file: TextFile, text: str) -> None:
    """Through a symbolic link to its file, with the file's mode."""
    target, mode = await _target(workspace, path)
    await workspace.sandbox.write_file(target, file.encode(text), mode=mode)
    _remember(workspace, path, text)


async def _target(workspace: Workspace, path: str) -> tuple[str, int]:
    """The file to write, with its mode. One process in the usual case: they cost more than I/O."""
    mode = await _mode(workspace, path)
    if stat.S_ISLNK(mode):
        path = await _say(workspace, path, "readlink", "-fn")
        mode = await _mode(workspace, path)
    if not path.startswith("/") or not stat.S_ISREG(mode):
        raise ToolRefusal(f"{workspace.shown(path)} is no regular file")
    return path, stat.S_IMODE(mode)


async def _mode(workspace: Workspace, path: str) -> int:
    said = await _say(workspace, path, "stat", "-c", "%f")
    try:
        return int(said, 16)
    except ValueError:
        raise ToolRefusal(f"{workspace.shown(path)} cannot be resolved") from None


async def _say(workspace: Workspace, path: str, *command: str) -> str:
    argv = [*command, "--", path]
    result = await workspace.sandbox.exec(argv, timeout_s=workspace.command_s)
    return result.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


async def _create(workspace: Workspace, path: str, text: str) -> str:
    shown = workspace.shown(path)
    try:
        file = await read_text(workspace, path)
    except ToolRefusal as refusal:
        if not str(refusal).startswith("no file"):
            raise
    else:
        if file.text:
            raise ToolRefusal("old_string is empty and the file is not")
    await workspace.sandbox.write_file(path, text.encode("utf-8"))
    _remember(workspace, path, text)
    return f"created {shown}"


def _remember(workspace: Workspace, path: str, text: str) -> None:
    workspace.read_texts.pop(path, None)
    if len(text) <= _REMEMBERED_CHARS:
        workspace.read_texts[path] = text


EDIT = Tool(
    name="edit",
    description="Replace old_string, which must be unique in the file, by new_string.",
    arguments=EditArguments,
    run=edit,
    aliases={
        "path": "file_path",
        "file": "file_path",
        "filename": "file_path",
        "target_file": "file_path",
        "old_str": "old_string",
        "old": "old_string",
        "search": "old_string",
        "new_str": "new_string",
        "new": "new_string",
        "replace": "new_string",
        "all": "replace_all",
    },
    ornaments=frozenset({"description", "explanation", "instructions"}),
)
