"""Clean and bounded text for the model."""

import re

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # OSC: titles, links
    r"|\x1b[PX^_].*?(?:\x1b\\|$)"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MAX_LINE_CHARS = 400


def clean(text: str) -> str:
    """Terminal output as a person would see it at the end: no escapes, no overwritten text."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n")
    lines = (_last_overwrite(line) for line in plain.split("\n"))
    return _CONTROL.sub("", "\n".join(lines))


def bound(text: str, limit: int) -> str:
    """At most about `limit` characters: head and tail are kept, the cut is said."""
    lines = "\n".join(clip(line) for line in text.split("\n"))
    if len(lines) <= limit:
        return lines
    head = limit // 3
    tail = limit - head
    return f"{lines[:head]}\n[{len(lines) - limit} characters cut]\n{lines[-tail:]}"


def clip(line: str, limit: int = _MAX_LINE_CHARS) -> str:
    """One line, shortened in its middle when it is longer than `limit`."""
    if len(line) <= limit:
        return line
    half = limit // 2
    return f"{line[:half]}[…{len(line) - 2 * half}…]{line[-half:]}"


def _last_overwrite(line: str) -> str:
    """What a line with carriage returns shows at the end (progress bars overwrite themselves)."""
    return line.rstrip("\r").rpartition("\r")[2]
