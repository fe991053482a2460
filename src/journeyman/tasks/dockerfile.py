"""The part of Dockerfiles that templates can be made of; the rest is refused by name."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from journeyman.types import UserError

_BASES = re.compile(
    r"^(docker\.io/|library/)*"
    r"(journeyman/default(:\S+)?"
    r"|python(:(3|3\.11(\.\d+)?)(-slim|-slim-bookworm|-bookworm)?|:slim|:latest)?"
    r"|debian:(bookworm|12|12\.\d+)(-slim|-\d+)*(-slim)?)$"
)
_NETWORK = re.compile(
    r"\b(apt-get|apt|apk|dnf|yum|pip3?|pipx|uvx?|poetry|conda|npm|yarn|cargo|gem|curl|wget)\b"
    r"|\bgit\s+clone\b|https?://"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction, continuation lines joined."""

    line: int
    word: str
    rest: str


@dataclass(frozen=True)
class Dockerfile:
    """Instructions after FROM, all of a kind that templates have."""

    path: Path
    instructions: tuple[Instruction, ...]


def needs_network(command: str) -> str | None:
    """The word in a shell command that would need a network, if any."""
    found = _NETWORK.search(command)
    return found.group() if found else None


def parse(path: Path) -> Dockerfile:
    """Raises UserError naming the first instruction that the default template cannot serve."""
    instructions = list(_instructions(path))
    if not instructions or instructions[0].word != "FROM":
        raise UserError(f"{path} does not begin with FROM", "Name a base image.")
    base = instructions[0].rest.split()[0] if instructions[0].rest else ""
    if len(instructions[0].rest.split()) != 1 or not _BASES.match(base):
        _refuse(path, instructions[0], "sandboxes offer Debian 12 with Python 3.11 only")
    for instruction in instructions[1:]:
        _check(path, instruction)
    return Dockerfile(path, tuple(instructions[1:]))


def _check(path: Path, instruction: Instruction) -> None:
    match instruction.word:
        case "RUN":
            word = needs_network(instruction.rest)
            if word is not None:
                _refuse(path, instruction, f"{word!r} needs a network; sandboxes have none")
            if instruction.rest.startswith("--"):
                _refuse(path, instruction, "options of RUN are not supported")
        case "COPY" | "ADD":
            if "://" in instruction.rest:
                _refuse(path, instruction, "sandboxes have no network")
            if len(words(instruction)) < 2 or instruction.rest.startswith("--"):
                _refuse(path, instruction, "only plain `COPY from… to` is supported")
        case "WORKDIR" | "ENV" | "LABEL" | "CMD" | "EXPOSE":
            return
        case _:
            _refuse(path, instruction, "this instruction is not supported")


def words(instruction: Instruction) -> list[str]:
    """Arguments of COPY, ADD or ENV, in shell or JSON form."""
    if instruction.rest.startswith("["):
        return [str(item) for item in json.loads(instruction.rest)]
    return shlex.split(instruction.rest)


def _instructions(path: Path) -> list[Instruction]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no {path}", "A task needs environment/Dockerfile.") from None
    found: list[Instruction] = []
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first or number
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
            continue
        word, _, rest = pending.partition(" ")
        found.append(Instruction(first, word.upper(), rest.strip()))
        pending, first = "", 0
    return found


def _refuse(path: Path, instruction: Instruction, why: str) -> NoReturn:
    raise UserError(
        f"{path}, line {instruction.line}: `{instruction.word} {instruction.rest}`: {why}",
        "The task asks for more than the default template has; leave it out.",
    )
