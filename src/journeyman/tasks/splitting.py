"""Who learns from what: fixed by project, function and seed before anything is trained."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from journeyman.types import Split

Item = TypeVar("Item")
WARM_SHARE = 0.55


def order_key(seed: int, *parts: str) -> bytes:
    """A place in a random order that depends on nothing but its arguments."""
    return hashlib.sha256("\0".join([str(seed), *parts]).encode()).digest()


def split_of(
    kind: Literal["train", "held_out"], seed: int, project: str, path: str, function: str
) -> Split:
    """Projects decide between training and held-out, functions between warm and train."""
    if kind == "held_out":
        return "held_out"
    number = int.from_bytes(order_key(seed, "split", project, path, function)[:8])
    return "warm" if number < WARM_SHARE * 2**64 else "train"


def round_robin(
    items: Iterable[Item], key: Callable[[Item], str], order: Callable[[Item], bytes]
) -> Iterator[Item]:
    """All items, taking turns between the groups that `key` names; within one by `order`."""
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    queues = [sorted(groups[name], key=order, reverse=True) for name in sorted(groups)]
    while queues:
        for queue in queues:
            yield queue.pop()
        queues = [queue for queue in queues if queue]


def balanced(
    items: Iterable[Item],
    most: int,
    keys: Sequence[Callable[[Item], str]],
    order: Callable[[Item], bytes],
) -> list[Item]:
    """Up to `most` items, as evenly over the groups of each key (outermost first) as they last."""
    if not keys:
        return sorted(items, key=order)[:most]
    outer, *inner = keys
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        groups[outer(item)].append(item)
    queues = [balanced(groups[name], len(groups[name]), inner, order) for name in sorted(groups)]
    chosen: list[Item] = []
    place = 0
    while len(chosen) < most and any(place < len(queue) for queue in queues):
        chosen += [queue[place] for queue in queues if place < len(queue)]
        place += 1
    return chosen[:most]
