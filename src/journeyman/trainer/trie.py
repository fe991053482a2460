"""Packs of token streams in which every shared prefix is computed once.

The episodes of a group share their prompt, and often their first tool calls and results. A pack
is a trie of such streams: each distinct (prefix, token) is one node, its position is its depth,
and it attends to its ancestors. Log-probabilities are gathered per sample afterwards, so any
per-sample loss stays exact; a node that several samples share receives the sum of their gradients.

Axes: N nodes in depth-first order, R rows (distinct predictions), K sampled tokens of samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from journeyman.types import Sample, UserError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """A chain of nodes [start, end) without a branch. `context` are the segments above it, from
    the root down; every node of the segment attends to all of their nodes."""

    start: int
    end: int
    context: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pack:
    """Some samples of a batch, ready for one forward and backward pass.

    Example: streams [5, 6, 7*] and [5, 6, 8*] (* sampled) → token_ids [5, 6], positions [0, 1],
    row_nodes [1, 1], row_targets [7, 8], token_rows [0, 1], token_samples [0, 1].
    """

    token_ids: Ints
    """[N]"""
    positions: Ints
    """[N] depth in the trie"""
    segments: tuple[Segment, ...]
    row_nodes: Ints
    """[R] the node whose hidden state predicts the row's target"""
    row_targets: Ints
    """[R] the predicted token"""
    token_rows: Ints
    """[K] ascending"""
    token_samples: Ints
    """[K] index of the sample in the batch"""
    token_indices: Ints
    """[K] index of the sampled token in its sample's stream"""
    num_stream_tokens: int
    """Nodes the same samples take when nothing is shared."""


def pack_samples(samples: Sequence[Sample], max_nodes: int) -> list[Pack]:
    """Distribute samples over packs of at most `max_nodes` nodes, sharing as much as possible.

    A stream is computed up to its last sampled token; a sample without any is in no pack. A stream
    longer than `max_nodes` gets a pack of its own. Raises UserError when a stream's first token is
    marked as sampled (nothing predicts it).
    """
    streams = [_needed_tokens(sample) for sample in samples]
    used = [index for index, stream in enumerate(streams) if len(stream)]
    order = sorted(used, key=lambda index: streams[index].tolist())
    ordered = [streams[index] for index in order]
    shared = [0] + [_common_prefix(a, b) for a, b in pairwise(ordered)]
    bounds = _cuts([len(stream) for stream in ordered], shared, max_nodes)
    return [
        _build(samples, order[start:end], ordered[start:end], shared[start:end])
        for start, end in bounds
    ]


def _needed_tokens(sample: Sample) -> Ints:
    """The tokens whose hidden states are needed: all before the last sampled one."""
    sampled = np.flatnonzero(sample.stream.loss_mask)
    if len(sampled) and sampled[0] == 0:
        raise UserError(
            f"the first token of episode {sample.episode} is marked as sampled",
            "a stream starts with its prompt: at least one token before the first sampled one",
        )
    end = int(sampled[-1]) if len(sampled) else 0
    return np.asarray(sample.stream.token_ids[:end], dtype=np.int64)


def _common_prefix(left: Ints, right: Ints) -> int:
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def _cuts(lengths: list[int], shared: list[int], max_nodes: int) -> list[tuple[int, int]]:
    """Where to cut the sorted streams so that the fewest nodes are computed twice.

    Stream k adds lengths[k] - shared[k] nodes to a pack it does not start; starting a pack costs
    shared[k] nodes again. Dynamic programming over the start of the last pack.
    """
    count = len(lengths)
    best: list[tuple[int, int]] = [(0, 0)]  # per prefix: (repeated nodes, number of packs)
    last_start = [0]
    for end in range(1, count + 1):
        choices = []
        added = 0
        for start in range(end - 1, -1, -1):
            if lengths[start] + added > max_nodes and start < end - 1:
                break
            repeated, packs = best[start]
            choices.append(((repeated + shared[start], packs + 1), start))
            added += lengths[start] - shared[start]
        cost, start = min(choices)
        best.append(cost)
        last_start.append(start)
    bounds = []
    end = count
    while end:
        bounds.append((last_start[end], end))
        end = last_start[end]
    return bounds[::-1]


def _build(
    samples: Sequence[Sample], order: list[int], streams: list[Ints], shared: list[int]
) -> Pack:
    shared = [0, *shared[1:]]
    paths = _paths(streams, shared)
    num_nodes = int(max(path.max() for path in paths)) + 1
    token_ids = np.empty(num_nodes, dtype=np.int64)
    positions = np.empty(num_nodes, dtype=np.int64)
    for stream, path in zip(streams, paths, strict=True):
        token_ids[path] = stream
        positions[path] = np.arange(len(stream))
    parts = [
        _predictions(samples[index], index, path) for index, path in zip(order, paths, strict=True)
    ]
    nodes, targets, indices, owners = (np.concatenate(part) for part in zip(*parts, strict=True))
    pairs, rows = np.unique(np.stack((nodes, targets)), axis=1, return_inverse=True)
    ascending = np.argsort(rows, kind="stable")
    return Pack(
        token_ids=token_ids,
        positions=positions,
        segments=_segments(paths, shared, num_nodes),
        row_nodes=pairs[0],
        row_targets=pairs[1],
        token_rows=rows[ascending],
        token_samples=owners[ascending],
        token_indices=indices[ascending],
        num_stream_tokens=sum(len(stream) for stream in streams),
    )


def _paths(streams: list[Ints], shared: list[int]) -> list[Ints]:
    """The node of every token of every stream; nodes are numbered in depth-first order."""
    paths: list[Ints] = []
    next_node = 0
    for stream, common in zip(streams, shared, strict=True):
        fresh = np.arange(next_node, next_node + len(stream) - common)
        paths.append(np.concatenate((paths[-1][:common], fresh)) if common else fresh)
        next_node += len(fresh)
    return paths


def _predictions(sample: Sample, owner: int, path: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each sampled token: the node before it, the token, its index, its sample."""
    indices = np.flatnonzero(sample.stream.loss_mask)
    targets = np.asarray(sample.stream.token_ids, dtype=np.int64)[indices]
    return path[indices - 1], targets, indices, np.full(len(indices), owner)


def _segments(paths: list[Ints], shared: list[int], num_nodes: int) -> tuple[Segment, ...]:
    parents = np.full(num_nodes, -1, dtype=np.int64)
    starts = {0}
    for path, common in zip(paths, shared, strict=True):
        parents[path[1:]] = path[:-1]
        if common < len(path):
            starts.add(int(path[common]))
        if common and path[common - 1] + 1 < num_nodes:
            starts.add(int(path[common - 1]) + 1)
    edges = [*sorted(starts), num_nodes]
    segments: list[Segment] = []
    for start, end in pairwise(edges):
        parent = int(parents[start])
        if parent < 0:
            segments.append(Segment(start, end))
            continue
        above = int(np.searchsorted(edges, parent, side="right")) - 1
        segments.append(Segment(start, end, (*segments[above].context, above)))
    return tuple(segments)
