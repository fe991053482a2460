"""The answer to a generated task: for replay, for checks, and for its size in tokens."""

import json
from pathlib import Path
from typing import Any

from journeyman.types import Task, UserError, Value

ORACLE_FILE = "solution/oracle.json"


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


def oracle_calls(task: Task) -> list[tuple[str, dict[str, Any]]]:
    """The tool calls of a shortest solution: read, edit, submit."""
    return calls_of(read_oracle(task))


def calls_of(oracle: Oracle) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("read", {"file_path": oracle.path, "offset": oracle.offset, "limit": oracle.limit}),
        (
            "edit",
            {
                "file_path": oracle.path,
                "old_string": oracle.old_string,
                "new_string": oracle.new_string,
            },
        ),
        ("submit", {}),
    ]


def edit_strings(broken: str, line: int, original: str, mutated: str) -> tuple[str, str]:
    """(old, new) around `line` (1-based): the line without its indentation where that stands
    only once, else with lines before it until it does."""
    lines = broken.split("\n")
    old, new = mutated.strip(), original.strip()
    first = line - 1
    while broken.count(old) != 1:
        if old == mutated.strip() and broken.count(mutated) == 1:
            return mutated, original
        if first == 0:
            raise ValueError(f"line {line} cannot be told from others")
        first -= 1
        before = "\n".join(lines[first : line - 1]).lstrip()
        old, new = f"{before}\n{mutated}", f"{before}\n{original}"
    return old, new


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
