"""The KV cache's blocks: who uses which, and which hold a prefix that others may reuse.

A full block is known by its key, a hash over everything it depends on: the policy version, all
tokens before it, and its own tokens. Blocks nobody uses keep their content until they are needed.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from journeyman.types import PolicyVersion

Key = bytes


def root_key(version: PolicyVersion) -> Key:
    """The key before the first block: content computed by other weights never matches."""
    return hashlib.blake2b(f"{version.number} {version.digest}".encode(), digest_size=16).digest()


def next_key(previous: Key, tokens: Sequence[int]) -> Key:
    """The key of a full block after `previous`."""
    return hashlib.blake2b(previous + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockPool:
    """`num_blocks` blocks with reference counts. Idle known blocks are evicted oldest first."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._users = [0] * num_blocks
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[Key, int] = {}

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give."""
        return len(self._blank) + len(self._idle)

    def allocate(self) -> int | None:
        """A block of one's own with arbitrary content, or None when all are in use."""
        if self._blank:
            block = self._blank.pop()
        elif self._idle:
            block, _ = self._idle.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
        else:
            return None
        self._users[block] = 1
        return block

    def deallocate(self, blocks: Sequence[int]) -> None:
        """Give up `blocks` of one sequence. Its last blocks will be evicted before its first."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                if block in self._key_of:
                    self._idle[block] = None
                else:
                    self._blank.append(block)

    def find(self, key: Key) -> int | None:
        """The block that holds `key`, without taking it."""
        return self._block_of.get(key)

    def share(self, block: int) -> None:
        """Use a found block together with whoever uses it."""
        self._idle.pop(block, None)
        self._users[block] += 1

    def publish(self, block: int, key: Key) -> None:
        """Make a computed full block known. A key that is known already stays where it is."""
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def forget(self) -> None:
        """Nothing cached may be found any more; blocks in use stay in use."""
        self._blank.extend(self._idle)
        self._idle.clear()
        self._key_of.clear()
        self._block_of.clear()
