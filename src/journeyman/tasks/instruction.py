"""The words of a task, from its real failing run."""

import re
from dataclasses import dataclass

CONTEXT_LINES = 2
"""Shown before and after the faulty line."""
MAX_LINES, MAX_CHARS = 5, 300
_IDLE = ("?", "Use -v", "...Full output truncated")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


@dataclass(frozen=True)
class Place:
    """Where the fault is, and which lines to look at: 1-based and inclusive."""

    path: str
    function: str
    first: int
    last: int
    line: int | None = None
    """The faulty line itself, where it is known."""


def lines_to_see(line: int, num_lines: int) -> tuple[int, int]:
    """First and last line to look at for a faulty line of a file of `num_lines`."""
    return max(1, line - CONTEXT_LINES), min(num_lines, line + CONTEXT_LINES)


def instruction(test: str, explanation: str, place: Place) -> str:
    """What the agent is told: a failing test, how it fails, and where the fault is.

    The path stands in double quotes because a call's arguments do: then its tokens are the same
    in both, and a small model copies names that it never saw in training.
    """
    line = "" if place.line is None else f"line {place.line} of "
    return (
        f"The test `{test}` fails:\n{shorten(explanation)}\n"
        f'The fault is in {line}"{place.path}", in `{place.function}`. '
        f"See lines {place.first}-{place.last} ({place.last - place.first + 1} lines)."
    )


def shorten(explanation: str) -> str:
    """At most 5 lines and 300 characters, without addresses that differ from run to run and
    without what pytest says of its own options."""
    lines = [line.rstrip() for line in _ADDRESS.sub("0x…", explanation).splitlines()]
    kept = [line for line in lines if line and not line.startswith(_IDLE)]
    text = "\n".join(kept[:MAX_LINES])
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1].rstrip()}…"
