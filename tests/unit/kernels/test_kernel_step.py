"""Whole steps against a float64 reference, and the promise that bits do not move."""

import random
from dataclasses import replace

import pytest
import torch
from kernel_cases import (
    CONFIGS,
    Chunk,
    make_batch,
    native,
    random_state,
    random_tokens,
    reference_logits,
    score_whole,
)

from journeyman.model import BLOCK
from journeyman.model.kernels import NativeBackend
from journeyman.model.torch_backend import TorchBackend
from journeyman.types import EngineError, UserError

TABLE = [5, 1, 9, 2, 11, 3, 7, 0, 4, 30, 31, 33]


def test_logprobs_agree_with_float64(config, every_isa):
    tokens = random_tokens(config, 150)
    got = score_whole(native(config, every_isa), tokens, TABLE)
    logits = reference_logits(config, random_state(config), tokens[:-1])
    want = logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    error = (got.double() - want).abs()
    # Only activations are rounded, to 8 bits of mantissa. A wrong key, angle or head shows as
    # an error of the order of 1.
    assert error.max() < 0.2
    assert error.mean() < 0.03


def test_no_less_accurate_than_the_torch_backend(config):
    tokens = random_tokens(config, 150)
    state = random_state(config)
    torch_backend = TorchBackend(config)
    torch_backend.load(state)
    torch_backend.allocate(64)
    batch = make_batch([Chunk(tokens, 0, TABLE, sample_all=True)], temperature=0)
    ours, theirs = native(config).step(batch), torch_backend.step(batch)
    want = reference_logits(config, state, tokens).log_softmax(-1)

    def error(result):
        chosen = want.gather(1, result.token_ids.long()[:, None])[:, 0]
        return float((result.logprobs - chosen).abs().mean())

    assert error(ours) <= error(theirs)


def test_every_chunking_gives_the_same_bits(config, every_isa):
    tokens = random_tokens(config, 140)
    backend = native(config, every_isa)
    whole = score_whole(backend, tokens, TABLE)
    for cuts in ([1] * 139, [63, 1, 1, 64, 10], [17, 100, 22], [16] * 8 + [11]):
        backend.allocate(64)
        pieces, first = [], 0
        for size in cuts:
            chunk = Chunk(tokens[first : first + size], first, TABLE, sample_all=True)
            targets = torch.tensor(tokens[first + 1 : first + size + 1], dtype=torch.int32)
            pieces.append(backend.score(make_batch([chunk]), targets).logprobs)
            first += size
        assert torch.equal(torch.cat(pieces), whole), cuts


@pytest.mark.parametrize("count", [1, 7, 64, 257])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_has_the_same_bits_in_every_batch(isa, count, threads):
    config = CONFIGS["grouped"]
    shuffled = random.Random(count)
    tokens = random_tokens(config, 70)
    alone = score_whole(native(config, isa, threads=1), tokens, TABLE)[-1]
    backend = native(config, isa, threads=threads, blocks=6 * count)
    place = shuffled.choice([0, count - 1])
    # Every other sequence has its own length, tokens and blocks.
    chunks = []
    for s in range(count):
        table = list(range(6 * s, 6 * s + 6))
        length = 69 if s == place else shuffled.randint(2, 80)
        own = tokens[:69] if s == place else random_tokens(config, length, seed=s + 1)
        chunks.append(Chunk(own, 0, table))
    backend.step(make_batch([Chunk(c.tokens[:-1], 0, c.table) for c in chunks]))
    last = [Chunk(c.tokens[-1:], len(c.tokens) - 1, c.table) for c in chunks]
    targets = torch.full((count,), tokens[69], dtype=torch.int32)
    mixed = backend.score(make_batch(last), targets).logprobs
    assert torch.equal(mixed[place], alone)


def test_scoring_a_sampled_token_gives_the_same_bits(config, isa):
    backend = native(config, isa)
    tokens = random_tokens(config, 30)
    sampled = []
    chunk = Chunk(tokens, 0, TABLE)
    for seed in range(40):
        got = backend.step(make_batch([chunk], temperature=0.7, seeds=[seed]))
        sampled.append((int(got.token_ids[0]), got.logprobs[0]))
        chunk = Chunk([sampled[-1][0]], chunk.first + len(chunk.tokens), TABLE)
    whole = tokens + [token for token, _ in sampled]
    batch = make_batch([Chunk(whole[:-1], 0, TABLE[::-1], sample_all=True)], temperature=0.7)
    scored = backend.score(batch, torch.tensor(whole[1:], dtype=torch.int32)).logprobs
    assert torch.equal(scored[29:], torch.stack([logprob for _, logprob in sampled]))


def test_one_token_and_none(config, isa):
    backend = native(config, isa)
    token = random_tokens(config, 1)
    got = backend.step(make_batch([Chunk(token, 0, [3])], temperature=0))
    best, where = reference_logits(config, random_state(config), token).log_softmax(-1).max(-1)
    assert got.token_ids[0] == where[0]
    assert got.logprobs[0] == pytest.approx(float(best[0]), abs=0.05)
    empty = backend.step(make_batch([Chunk([], 1, [3])]))
    assert empty.token_ids.shape == empty.logprobs.shape == (0,)
    none = torch.empty(0)
    quiet = replace(
        make_batch([Chunk(token, 0, [3])]),
        sample_rows=none.int(),
        temperature=none,
        top_p=none,
        seeds=none.long(),
    )
    assert backend.step(quiet).token_ids.shape == (0,)


def test_what_lies_in_unused_slots_never_shows(isa):
    """A step under broken weights leaves NaN in its blocks; later sequences re-use them."""
    config = CONFIGS["grouped"]
    backend = native(config, isa)
    tokens = random_tokens(config, 71)
    clean = score_whole(backend, tokens, TABLE)
    broken = random_state(config)
    broken["model.layers.0.self_attn.v_proj.weight"][:] = float("nan")
    broken["model.layers.0.self_attn.k_proj.weight"][:] = float("nan")
    backend.load(broken)
    with pytest.raises(EngineError, match=r"sampled row 0 are not finite"):
        backend.step(make_batch([Chunk(random_tokens(config, 190), 0, TABLE)]))
    backend.load(random_state(config))
    assert torch.equal(score_whole(backend, tokens, TABLE), clean)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_give_an_error_not_a_token(isa, value):
    config = CONFIGS["odd"]
    state = random_state(config)
    state["model.layers.1.mlp.down_proj.weight"][3, 3] = value
    backend = native(config, isa)
    backend.load(state)
    for temperature in (0, 1):
        with pytest.raises(EngineError, match="not finite"):
            backend.step(make_batch([Chunk([1, 2, 3], 0, [0])], temperature=temperature))


def test_refused_weights_leave_the_old_ones_in_use():
    config = CONFIGS["grouped"]
    backend, tokens = native(config), random_tokens(config, 20)
    before = score_whole(backend, tokens, TABLE)
    state = random_state(config, seed=9)
    state["model.norm.weight"] = torch.ones(191)
    with pytest.raises(UserError, match=r"model\.norm\.weight is \[191\], expected \[192\]"):
        backend.load(state)
    assert torch.equal(score_whole(backend, tokens, TABLE), before)


def test_weights_are_copied():
    config = CONFIGS["odd"]
    state, tokens = random_state(config), random_tokens(config, 20)
    backend = native(config)
    backend.load(state)
    before = score_whole(backend, tokens, TABLE)
    for tensor in state.values():
        tensor.zero_()
    assert torch.equal(score_whole(backend, tokens, TABLE), before)


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("token_ids", 1, 97, r"token_ids\[1\] is 97, not in \[0, 97\)"),
        ("token_ids", 0, -1, r"token_ids\[0\] is -1"),
        ("positions", 2, 512, r"positions\[2\] is 512, not in \[0, 512\)"),
        ("positions", 2, 3, r"positions\[2\] is 3, not in \[0, 3\)"),
        ("slots", 0, 4 * BLOCK, r"slots\[0\] is 64, not in \[0, 64\)"),
        ("query_starts", 1, 2, "query_starts does not run from 0"),
        ("context_lens", 0, 33, r"context_lens\[0\] is 33, not in \[0, 33\)"),
        ("block_tables", (0, 0), 4, r"block_tables\[0\] is 4, not in \[0, 4\)"),
        ("sample_rows", 0, 3, r"sample_rows\[0\] is 3, not in \[0, 3\)"),
        ("temperature", 0, -1.0, r"temperature\[0\] is -1"),
        ("temperature", 0, float("nan"), r"temperature\[0\] is -?nan"),
        ("top_p", 0, 0.0, r"top_p\[0\] is 0"),
    ],
)
def test_a_batch_out_of_range_is_refused(name, index, value, message):
    backend = native(CONFIGS["odd"], blocks=4)
    batch = make_batch([Chunk([1, 2, 3], 0, [0, 1])])
    getattr(batch, name)[index] = value
    with pytest.raises(EngineError, match=message):
        backend.step(batch)


def test_arrays_of_unequal_length_are_refused():
    batch = make_batch([Chunk([1, 2, 3], 0, [0])])
    short = replace(batch, slots=batch.slots[:2])
    with pytest.raises(EngineError, match="slots has length 2, not 3"):
        native(CONFIGS["odd"]).step(short)


def test_a_step_before_weights_is_refused():
    backend = NativeBackend(CONFIGS["odd"])
    backend.allocate(1)
    with pytest.raises(EngineError, match="no weights"):
        backend.step(make_batch([Chunk([1], 0, [0])]))
