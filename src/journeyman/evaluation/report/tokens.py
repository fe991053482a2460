"""A token stream as a person reads it: sampled tokens one by one, the rest as text."""

from collections.abc import Callable, Sequence
from math import exp

from journeyman.types import TokenStream, Value

Decode = Callable[[list[int]], str]

_REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 4  # bytes of one character in UTF-8, so tokens it can be spread over


class TokenSpan(Value):
    """Text of one token, or of a few that only make whole characters together."""

    text: str
    ids: tuple[int, ...]
    probability: float
    """Under the policy that sampled it; of several tokens the product."""
    version: int


def sampled_runs(stream: TokenStream, decode: Decode) -> list[list[TokenSpan]]:
    """The spans of each unbroken run of sampled tokens: one run per reply."""
    runs: list[list[TokenSpan]] = []
    begin = None
    for position, sampled in enumerate((*stream.loss_mask, False)):
        if sampled and begin is None:
            begin = position
        elif not sampled and begin is not None:
            runs.append(_spans(stream, begin, position, decode))
            begin = None
    return runs


def _spans(stream: TokenStream, begin: int, end: int, decode: Decode) -> list[TokenSpan]:
    spans = []
    while begin < end:
        stop = _whole_characters(stream.token_ids, begin, end, decode)
        ids = stream.token_ids[begin:stop]
        spans.append(
            TokenSpan(
                text=decode(list(ids)),
                ids=ids,
                probability=exp(sum(stream.logprobs[begin:stop])),
                version=max(stream.versions[begin:stop]),
            )
        )
        begin = stop
    return spans


def _whole_characters(ids: Sequence[int], begin: int, end: int, decode: Decode) -> int:
    """The smallest stop such that ids[begin:stop] decode without a torn character."""
    for stop in range(begin + 1, min(end, begin + _LONGEST_CHARACTER) + 1):
        if _REPLACEMENT not in decode(list(ids[begin:stop])):
            return stop
    return begin + 1
