"""Read the JSON that models write: repaired where it has one meaning, refused otherwise."""

import ast
import json
import math
import re
import warnings
from typing import Any

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(.))', re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 32


class Unreadable(ValueError):
    """The text has no single meaning as a JSON object; the message says why."""


def read_object(text: str, *, cut_off: bool) -> tuple[dict[str, Any], list[str]]:
    """The object in `text` and the repairs it took.

    `cut_off` says that the text may have ended too early: then missing brackets are added only
    after a complete value (a number or a string that was cut could have gone on).
    Raises Unreadable.
    """
    body = text.strip()
    if not body.startswith("{"):
        raise Unreadable("not a JSON object")
    value, repairs = _first_reading(body, cut_off)
    if not isinstance(value, dict):
        raise Unreadable("not a JSON object")
    _refuse_unstorable(value)
    return value, repairs


def _first_reading(body: str, cut_off: bool) -> tuple[Any, list[str]]:
    try:
        return json.loads(body), []
    except json.JSONDecodeError as error:
        reason = f"invalid JSON: {error.msg} at {error.pos}"
    except (ValueError, RecursionError):
        raise Unreadable("invalid JSON: a number or a nesting is too large") from None
    repairs: list[str] = []
    mended = body
    for repair, mend in (
        ("escapes doubled", _double_bad_escapes),
        ("trailing comma removed", _drop_trailing_commas),
        ("closing brackets added", lambda t: _close_brackets(t, cut_off)),
        ("extra brackets removed", _drop_extra_brackets),
    ):
        changed = mend(mended)
        if changed != mended:
            mended = changed
            repairs.append(repair)
            if (value := _loads(mended)) is not None:
                return value, repairs
    # Last, raw line breaks inside strings: strict readers refuse them, their meaning is plain.
    value = _loads(mended, strict=False)
    if value is not None:
        return value, [*repairs, "line breaks escaped"]
    value = _python_literal(body)
    if value is not None:
        return value, ["python literal read"]
    raise Unreadable(reason)


def _loads(text: str, *, strict: bool = True) -> Any:
    try:
        return json.loads(text, strict=strict)
    except (ValueError, RecursionError):
        return None


def _python_literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # odd escapes are the model's
            value = ast.literal_eval(text)
        return json.loads(json.dumps(value)) if isinstance(value, dict) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _double_bad_escapes(text: str) -> str:
    """`\\d` inside a string is not JSON; it can only mean a backslash and a d."""

    def mend(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group(0)
        return "'" if match.group(1) == "'" else "\\" + match.group(0)

    return _STRING.sub(lambda s: _BAD_ESCAPE.sub(mend, s.group(0)), text)


def _drop_trailing_commas(text: str) -> str:
    outside = _split_outside_strings(text)
    return "".join(p if inside else _TRAILING_COMMA.sub(r"\1", p) for inside, p in outside)


def _split_outside_strings(text: str) -> list[tuple[bool, str]]:
    """The text in pieces, each with whether it is a string literal."""
    pieces: list[tuple[bool, str]] = []
    end = 0
    for match in _STRING.finditer(text):
        pieces += [(False, text[end : match.start()]), (True, match.group(0))]
        end = match.end()
    return [*pieces, (False, text[end:])]


def _open_brackets(text: str) -> str:
    """The closers that are still missing, innermost first."""
    missing: list[str] = []
    for inside, piece in _split_outside_strings(text):
        for char in "" if inside else piece:
            if char in "{[":
                missing.append("}" if char == "{" else "]")
            elif char in "}]" and missing and missing[-1] == char:
                missing.pop()
    return "".join(reversed(missing))


def _close_brackets(text: str, cut_off: bool) -> str:
    trailing = text.rstrip()
    if '"' in _split_outside_strings(trailing)[-1][1]:
        return text  # the text ends inside a string: what was to follow is unknown
    if cut_off and trailing[-1:] not in '}]"':
        return text  # a number or a word that was cut could have gone on
    return trailing + _open_brackets(trailing)


def _drop_extra_brackets(text: str) -> str:
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return text if text[end:].strip("}] \n\t") else text[:end]


def _refuse_unstorable(value: Any, depth: int = 0) -> None:
    """What parses and yet has no place in a UTF-8 record or a strict reader's JSON."""
    if depth > _MAX_DEPTH:
        raise Unreadable(f"nested deeper than {_MAX_DEPTH}")
    if isinstance(value, str) and _SURROGATE.search(value):
        raise Unreadable("a \\u escape is half of a character")
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable("a number is not finite")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_unstorable(key, depth + 1)
            _refuse_unstorable(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _refuse_unstorable(item, depth + 1)
