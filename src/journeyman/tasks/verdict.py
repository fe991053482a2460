"""Reading the verdict that tests/test.sh left in /logs/verifier."""

import json
import math
from dataclasses import dataclass

VERDICT_DIRECTORY = "/logs/verifier"


class NoVerdict(Exception):
    """There is no one trustworthy number. `args[0]` is a short stable cause."""


@dataclass(frozen=True)
class VerdictFiles:
    """Contents, or None where the file does not exist."""

    reward_txt: bytes | None
    reward_json: bytes | None


def parse_reward(files: VerdictFiles) -> float:
    """The one reward in [0, 1]. Raises NoVerdict for none, several, NaN, or out of range."""
    found: list[float] = []
    if files.reward_txt is not None:
        found.append(_from_text(files.reward_txt))
    if files.reward_json is not None:
        found.append(_from_json(files.reward_json))
    if not found:
        raise NoVerdict("no verdict")
    if any(value != found[0] for value in found):
        raise NoVerdict("two verdicts")
    return found[0]


def _from_text(data: bytes) -> float:
    words = data.decode("utf-8", "replace").split()
    if not words:
        raise NoVerdict("no verdict")
    if len(words) > 1:
        raise NoVerdict("two verdicts")
    try:
        return _checked(float(words[0]))
    except ValueError:
        raise NoVerdict("not a number") from None


def _from_json(data: bytes) -> float:
    try:
        value = json.loads(data)
    except ValueError:
        raise NoVerdict("not a number") from None
    if isinstance(value, dict):
        if "reward" in value:
            value = value["reward"]
        elif len(value) == 1:
            value = next(iter(value.values()))
        else:
            raise NoVerdict("two verdicts" if value else "no verdict")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoVerdict("not a number")
    return _checked(float(value))


def _checked(value: float) -> float:
    if math.isnan(value):
        raise NoVerdict("not a number")
    if not 0 <= value <= 1:
        raise NoVerdict("out of range")
    return value
