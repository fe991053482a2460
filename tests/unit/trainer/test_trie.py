"""Packing: every distinct prefix once, every sampled token accounted for."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.trainer.trie import Pack, pack_samples
from journeyman.types import Sample, UserError
from tests.unit.trainer.conftest import sample

streams = st.lists(
    st.lists(st.integers(0, 2), min_size=2, max_size=12).flatmap(
        lambda tokens: st.tuples(
            st.just(tokens), st.sets(st.integers(1, len(tokens) - 1), max_size=len(tokens))
        )
    ),
    min_size=1,
    max_size=10,
)


def build(pairs: list[tuple[list[int], set[int]]]) -> list[Sample]:
    return [sample(tokens, sorted(marked)) for tokens, marked in pairs]


def ancestors(pack: Pack) -> list[list[int]]:
    """Of every node, itself last, as the segments say."""
    found: list[list[int]] = []
    for segment in pack.segments:
        above = [
            node
            for index in segment.context
            for node in range(pack.segments[index].start, pack.segments[index].end)
        ]
        for node in range(segment.start, segment.end):
            found.append([*above, *range(segment.start, node + 1)])
    return found


def test_the_example_of_the_docstring() -> None:
    (pack,) = pack_samples([sample([5, 6, 7], [2]), sample([5, 6, 8], [2])], 100)
    assert pack.token_ids.tolist() == [5, 6]
    assert pack.positions.tolist() == [0, 1]
    assert pack.row_nodes.tolist() == [1, 1]
    assert pack.row_targets.tolist() == [7, 8]
    assert pack.token_rows.tolist() == [0, 1]
    assert pack.token_samples.tolist() == [0, 1]
    assert pack.num_stream_tokens == 4


def test_branches_become_segments_with_their_context() -> None:
    (pack,) = pack_samples(
        [sample([1, 2, 3, 4, 0], [4]), sample([1, 2, 5, 6, 0], [4]), sample([1, 2, 5, 7, 0], [4])],
        100,
    )
    spans = [(s.start, s.end, s.context) for s in pack.segments]
    assert spans == [(0, 2, ()), (2, 4, (0,)), (4, 5, (0,)), (5, 6, (0, 2)), (6, 7, (0, 2))]
    assert pack.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]


@given(streams, st.integers(1, 30))
def test_each_sampled_token_is_predicted_from_exactly_its_prefix(
    pairs: list[tuple[list[int], set[int]]], max_nodes: int
) -> None:
    samples = build(pairs)
    seen = []
    for pack in pack_samples(samples, max_nodes):
        chains = ancestors(pack)
        assert [len(chain) - 1 for chain in chains] == pack.positions.tolist()
        for row, owner, index in zip(
            pack.token_rows, pack.token_samples, pack.token_indices, strict=True
        ):
            chain = chains[pack.row_nodes[row]]
            tokens = samples[owner].stream.token_ids
            assert pack.token_ids[chain].tolist() == list(tokens[:index])
            assert pack.row_targets[row] == tokens[index]
            seen.append((int(owner), int(index)))
    wanted = [(i, j) for i, (_, marked) in enumerate(pairs) for j in marked]
    assert sorted(seen) == sorted(wanted)


@given(streams, st.integers(1, 30))
def test_no_prefix_is_computed_twice_in_a_pack_and_packs_are_bounded(
    pairs: list[tuple[list[int], set[int]]], max_nodes: int
) -> None:
    for pack in pack_samples(build(pairs), max_nodes):
        prefixes = [tuple(pack.token_ids[chain]) for chain in ancestors(pack)]
        assert len(set(prefixes)) == len(prefixes)
        predictions = list(zip(pack.row_nodes, pack.row_targets, strict=True))
        assert len(set(predictions)) == len(predictions)
        assert (np.diff(pack.token_rows) >= 0).all()
        assert all(a.end == b.start for a, b in pairwise(pack.segments))
        if len(prefixes) > max_nodes:
            owners = set(pack.token_samples.tolist())
            longest = max(max(pairs[i][1]) for i in owners)
            assert len(prefixes) == longest  # one stream that fits in no pack


def test_cuts_fall_between_groups_where_sharing_is_least() -> None:
    first = [sample([1] * 10 + [i, 0], [11]) for i in range(2, 4)]
    second = [sample([4] * 10 + [i, 0], [11]) for i in range(2, 4)]
    packs = pack_samples([first[0], second[0], first[1], second[1]], 13)
    assert [sorted(set(pack.token_samples.tolist())) for pack in packs] == [[0, 2], [1, 3]]
    assert [len(pack.token_ids) for pack in packs] == [12, 12]


def test_nothing_after_the_last_sampled_token_is_computed() -> None:
    (pack,) = pack_samples([sample([1, 2, 3, 4, 5, 6], [2, 3])], 100)
    assert pack.token_ids.tolist() == [1, 2, 3]


def test_samples_without_sampled_tokens_are_in_no_pack() -> None:
    assert pack_samples([sample([1, 2, 3], [])], 100) == []


def test_a_sampled_first_token_is_refused() -> None:
    with pytest.raises(UserError, match="first token of episode e7"):
        pack_samples([sample([1, 2], [0], name="e7")], 100)
