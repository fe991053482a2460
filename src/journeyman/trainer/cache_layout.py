"""Where a trie's keys and values lie in a paged cache.

The engine's attention walks the blocks of one sequence. In a trie every segment gets a table of
its own: whole blocks above the branch are its parent's, and where a branch falls inside a block
the segment's first block repeats what its ancestors hold of it.

Axes: N nodes, S segments, W blocks of the longest path.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from journeyman.model import BLOCK
from journeyman.trainer.trie import Pack

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class CacheLayout:
    num_blocks: int
    block_tables: Int32s
    """[S, W]; position p of a path through segment s is in block block_tables[s, p // BLOCK]"""
    slot_starts: Int32s
    """[N + 1]"""
    slots: Int32s
    """Slots (block * BLOCK + offset) of node n: slots[slot_starts[n] : slot_starts[n + 1]]."""


def cache_layout(pack: Pack) -> CacheLayout:
    """One block table per segment of `pack`."""
    width = -(-(int(pack.positions.max()) + 1) // BLOCK)
    tables = np.zeros((len(pack.segments), width), dtype=np.int32)
    paths: list[NDArray[np.int64]] = []
    nodes, slots = [], []
    num_blocks = 0
    for index, segment in enumerate(pack.segments):
        own = np.arange(segment.start, segment.end)
        above = paths[segment.context[-1]] if segment.context else own[:0]
        path = np.concatenate((above, own))
        paths.append(path)
        first, last = len(above) // BLOCK, -(-len(path) // BLOCK)
        if segment.context:
            tables[index, :first] = tables[segment.context[-1], :first]
        tables[index, first:last] = np.arange(num_blocks, num_blocks + last - first)
        num_blocks += last - first
        positions = np.arange(first * BLOCK, len(path))
        nodes.append(path[positions])
        slots.append(tables[index, positions // BLOCK] * BLOCK + positions % BLOCK)
    owners = np.concatenate(nodes)
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners, minlength=len(pack.token_ids))
    return CacheLayout(
        num_blocks=num_blocks,
        block_tables=tables,
        slot_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        slots=np.concatenate(slots)[order].astype(np.int32),
    )
