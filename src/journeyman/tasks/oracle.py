"""The answer to a generated task: for replay, for checks, and for its size in tokens."""

import json
from pathlib import Path
from typing import Any

from journeyman.types import Task, UserError, Value

ORACLE_FILE = "solution/oracle.json"

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""


class Oracle(Value):
    """Where to look and what to change. `old_string` stands exactly once in the broken file."""

    path: str
    """Relative to the work directory."""
    offset: int
    limit: int
    old_string: str
    new_string: str


def read_oracle(task: Task) -> Oracle:
    """Raises UserError for a task that was not generated here."""
    path = Path(task.directory) / ORACLE_FILE
    if not path.is_file():
        raise UserError(
            f"task {task.id} has no {ORACLE_FILE}", "Only generated tasks can be replayed."
        )
    return Oracle.model_validate_json(path.read_text(encoding="utf-8"))


def oracle_calls(task: Task) -> list[Call]:
    """The tool calls that solve a task without knowing more than they were told.

    A line that stands several times in the file is tried first as it is: nothing in the lines
    that were read says so, the tool does.
    """
    oracle = read_oracle(task)
    read, edit, submit = calls_of(oracle)
    if "\n" not in oracle.old_string:
        return [read, edit, submit]
    alone = _edit(oracle, _last_line(oracle.old_string), _last_line(oracle.new_string))
    return [read, alone, edit, submit]


def calls_of(oracle: Oracle) -> list[Call]:
    """The tool calls of a shortest solution: read, edit, submit."""
    return [
        ("read", {"file_path": oracle.path, "offset": oracle.offset, "limit": oracle.limit}),
        _edit(oracle, oracle.old_string, oracle.new_string),
        ("submit", {}),
    ]


def _edit(oracle: Oracle, old: str, new: str) -> Call:
    return "edit", {"file_path": oracle.path, "old_string": old, "new_string": new}


def _last_line(text: str) -> str:
    return text.rsplit("\n", 1)[-1]


def edit_strings(broken: str, line: int, original: str, mutated: str) -> tuple[str, str]:
    """(old, new): `line` (1-based) whole, with lines before it until it stands only once.

    With its indentation, so that its first word has the same tokens here as where it was read.
    """
    lines = broken.split("\n")
    first = line - 1
    before = ""
    while broken.count(before + mutated) != 1:
        if first == 0:
            raise ValueError(f"line {line} cannot be told from others")
        first -= 1
        before = "\n".join([*lines[first : line - 1], ""])
    return before + mutated, before + original


SOLVE_SCRIPT = """\
#!/bin/bash
# Puts the original line back.
set -eu
cd /app
exec python3 - "$(dirname "$0")/oracle.json" <<'END'
import json, sys
from pathlib import Path

oracle = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
path = Path(oracle["path"])
text = path.read_bytes().decode("utf-8")
if text.count(oracle["old_string"]) != 1:
    sys.exit(f"{path} does not hold the faulty text exactly once")
path.write_bytes(text.replace(oracle["old_string"], oracle["new_string"]).encode("utf-8"))
END
"""


def oracle_json(oracle: Oracle) -> str:
    return json.dumps(oracle.model_dump(), ensure_ascii=False, indent=1) + "\n"
