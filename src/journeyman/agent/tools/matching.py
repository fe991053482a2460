"""Where the search text of an edit stands in a file: exactly, or under one tolerance if unique.

Pure functions over text; nothing here guesses. Offsets are into the file's text as decoded.
"""

import difflib
import re
from collections import Counter
from dataclasses import dataclass

# One character each side, so that offsets stay true.
_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
    }
)
_COMMON_LINE = 50
_NEAREST_LINES = 3000
_INDENT = re.compile(r"[ \t]*")


@dataclass(frozen=True)
class Replacement:
    """Text[start:end] becomes `text`; `note` says which tolerance it took."""

    start: int
    end: int
    text: str
    note: str = ""


@dataclass(frozen=True)
class Found:
    """All places of the search text. More than one is the caller's to refuse or to accept."""

    places: tuple[Replacement, ...]


def find(text: str, old: str, new: str) -> Found:
    """Exact places (line ends aside), or the places under the first tolerance that has any."""
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    exact = _places(text, old)
    if exact:
        return Found(tuple(_replace(text, span, new) for span in exact))
    alike = _places(text.translate(_LOOK_ALIKES), old.translate(_LOOK_ALIKES))
    if alike:
        note = "look-alike characters matched"
        return Found(tuple(_replace(text, span, new, note) for span in alike))
    return Found(tuple(_indented(text, old, new)))


def apply(text: str, places: tuple[Replacement, ...]) -> str:
    """The text with all replacements made. Overlapping places: the first one wins."""
    pieces: list[str] = []
    end = 0
    for place in sorted(places, key=lambda p: p.start):
        if place.start < end:
            continue
        pieces += [text[end : place.start], place.text]
        end = place.end
    return "".join([*pieces, text[end:]])


def line_of(text: str, offset: int) -> int:
    """1-based line number of an offset."""
    return text.count("\n", 0, offset) + 1


def _places(text: str, old: str) -> list[tuple[int, int]]:
    """Overlapping places too: two ways to read a search text are two meanings."""
    if not old:
        return []
    pattern = r"\r?\n".join(re.escape(part) for part in old.split("\n"))
    return [(m.start(1), m.end(1)) for m in re.finditer(f"(?=({pattern}))", text)]


def _replace(text: str, span: tuple[int, int], new: str, note: str = "") -> Replacement:
    return Replacement(*span, new.replace("\n", _newline_at(text, *span)), note)


def _newline_at(text: str, start: int, end: int) -> str:
    """The line end used in a place, or right after it, or before it."""
    at = text.find("\n", start)
    if at < 0:
        at = text.rfind("\n", 0, start)
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"


def _indented(text: str, old: str, new: str) -> list[Replacement]:
    """Whole lines equal but for their indentation and trailing blanks."""
    whole = old.endswith("\n")
    wanted = old.removesuffix("\n").split("\n")
    if not any(line.strip() for line in wanted):
        return []
    lines = text.split("\n")
    bare = [line.strip() for line in lines]
    bare_wanted = [line.strip() for line in wanted]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    found: list[Replacement] = []
    for first in range(len(lines) - len(wanted) + 1):
        last = first + len(wanted)
        if bare[first:last] != bare_wanted:
            continue
        body = new.removesuffix("\n") if whole else new
        replaced = reindent(body.split("\n"), wanted, lines[first:last])
        if replaced is None:
            continue
        ending = "\r" if lines[last - 1].endswith("\r") else ""
        place = (starts[first], starts[last] - 1 - len(ending))
        joined = "\n".join(replaced)
        found.append(_replace(text, place, joined, "indentation adjusted"))
    return found


def reindent(new: list[str], old: list[str], file: list[str]) -> list[str] | None:
    """The new lines with the indentation that the file uses where the old text used another.

    None when the two indentations do not map onto each other one to one.
    """
    mapping: dict[str, str] = {}
    for ours, theirs in zip(old, file, strict=True):
        if ours.strip() and mapping.setdefault(_indent(ours), _indent(theirs)) != _indent(theirs):
            return None
    result: list[str] = []
    for line in new:
        if not line.strip():
            result.append("")
            continue
        indent = _map_indent(_indent(line), mapping)
        if indent is None:
            return None
        result.append(indent + line.lstrip(" \t"))
    return result


def _map_indent(indent: str, mapping: dict[str, str]) -> str | None:
    if indent in mapping:
        return mapping[indent]
    base = max((known for known in mapping if indent.startswith(known)), key=len, default=None)
    if base is None:
        return None
    deeper = indent[len(base) :]
    if not any("\t" in theirs for theirs in mapping.values()) or "\t" in deeper:
        return mapping[base] + deeper
    unit = _spaces_per_tab(mapping)
    if unit is None or len(deeper) % unit:
        return None
    return mapping[base] + "\t" * (len(deeper) // unit)


def _spaces_per_tab(mapping: dict[str, str]) -> int | None:
    for ours, theirs in mapping.items():
        tabs = theirs.count("\t")
        if tabs and ours and "\t" not in ours and len(ours) % tabs == 0:
            return len(ours) // tabs
    return None


def _indent(line: str) -> str:
    match = _INDENT.match(line)
    return match.group(0) if match else ""


def nearest(text: str, old: str) -> tuple[int, str] | None:
    """(line number, line) that most likely was meant and differs, for a search without a match."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    wanted = old.replace("\r\n", "\n").strip("\n").split("\n")
    start = _best_start(lines, wanted)
    if start is not None:
        for number, line in enumerate(wanted, start=start):
            if 0 <= number < len(lines) and lines[number].strip() != line.strip():
                return number + 1, lines[number]
        return start + 1, lines[start]
    target = max(wanted, key=lambda line: len(line.strip())).strip()[:200]
    candidates = [line.strip()[:200] for line in lines[:_NEAREST_LINES]]
    close = difflib.get_close_matches(target, candidates, n=1, cutoff=0.5)
    if not close:
        return None
    number = candidates.index(close[0])
    return number + 1, lines[number]


def _best_start(lines: list[str], wanted: list[str]) -> int | None:
    """Where most lines of the search text stand at their places, in the file's line numbers."""
    where: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if line.strip():
            where.setdefault(line.strip(), []).append(number)
    votes: Counter[int] = Counter()
    for position, line in enumerate(wanted):
        places = where.get(line.strip(), [])
        if len(places) <= _COMMON_LINE:
            votes.update(n - position for n in places if n >= position)
    return votes.most_common(1)[0][0] if votes else None
