"""The answer to a generated task: for replay, for checks, and for its size in tokens."""

import hashlib
import json
import re
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
    """The tool calls that solve a task as a careful programmer does it.

    A line that stands several times in the file is tried first as it is: nothing in the lines
    that were read says so, the tool does. One task in three shows a slip and how it is mended.
    """
    oracle = read_oracle(task)
    read, edit, submit = calls_of(oracle)
    if "\n" in oracle.old_string:
        return [
            read,
            _edit(oracle, _last_line(oracle.old_string), _last_line(oracle.new_string)),
            edit,
            submit,
        ]
    chance = hashlib.sha256(task.id.encode()).digest()
    if chance[0] % 3:
        return [read, edit, submit]
    broken = Path(task.directory) / "environment" / "broken" / oracle.path
    old, new = slip(oracle, broken.read_text(encoding="utf-8"), chance[1])
    return [read, _edit(oracle, old, new), edit, submit]


def calls_of(oracle: Oracle) -> list[Call]:
    """The tool calls of a shortest solution: read, edit, submit."""
    return [
        ("read", {"file_path": oracle.path, "offset": oracle.offset, "limit": oracle.limit}),
        _edit(oracle, oracle.old_string, oracle.new_string),
        ("submit", {}),
    ]


def slip(oracle: Oracle, broken: str, number: int) -> tuple[str, str]:
    """(old, new) of an edit that will be refused: with a word of the old text left out, or with
    the old text again as the new one. `number` chooses."""
    words = list(re.finditer(r"\w+", oracle.old_string))
    word = words[number // 2 % len(words)] if words else None
    if word and number % 2:
        without = oracle.old_string[: word.start()] + oracle.old_string[word.end() :]
        if _bare(without) not in _bare(broken):
            return without, oracle.new_string
    return oracle.old_string, oracle.old_string


def _edit(oracle: Oracle, old: str, new: str) -> Call:
    return "edit", {"file_path": oracle.path, "old_string": old, "new_string": new}


def _last_line(text: str) -> str:
    return text.rsplit("\n", 1)[-1]


def _bare(text: str) -> str:
    """Without white space: an edit tolerates other indentation."""
    return "".join(text.split())


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
