"""The sampled distribution, its logprobs, and what a draw depends on."""

from dataclasses import replace

import pytest
import torch
from kernel_cases import (
    CONFIGS,
    Chunk,
    make_batch,
    native,
    random_state,
    reference_logits,
    repeated,
)

from journeyman.model.sampling import sample

DRAWS = 20_000
PROMPT = [4, 8, 15, 16, 23, 42]


def draws(backend, seeds, **settings):
    """One row sampled many times, with other seeds."""
    batch = repeated(make_batch([Chunk(PROMPT, 0, [0])], **settings), len(seeds))
    return backend.step(replace(batch, seeds=torch.tensor(seeds, dtype=torch.int64)))


def all_logprobs(backend, **settings):
    """float64 [V]: every token scored after the prompt."""
    vocabulary = backend.config.vocab_size
    batch = repeated(make_batch([Chunk(PROMPT, 0, [0])], **settings), vocabulary)
    return backend.score(batch, torch.arange(vocabulary, dtype=torch.int32)).logprobs.double()


def chi_square_p_value(tokens, expected):
    """Of sampled tokens against expected counts [V]; rare tokens are pooled, because the
    chi-square approximation wants 5 expected in every cell."""
    counts = torch.bincount(tokens.long(), minlength=len(expected)).double()
    common = expected >= 5
    observed = torch.cat((counts[common], counts[~common].sum()[None]))
    wanted = torch.cat((expected[common], expected[~common].sum()[None])).clamp(min=1e-9)
    statistic = ((observed - wanted).square() / wanted).sum()
    freedom = torch.tensor(max(len(observed) - 1, 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.fixture(scope="module")
def backend():
    return native(CONFIGS["odd"])


def test_the_chi_square_test_can_fail(backend):
    expected = all_logprobs(backend).exp() * DRAWS
    got = draws(backend, range(DRAWS), temperature=1.1)
    assert chi_square_p_value(got.token_ids, expected) < 1e-4


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_follow_the_softmax(backend, temperature):
    expected = all_logprobs(backend, temperature=temperature).exp() * DRAWS
    got = draws(backend, range(DRAWS), temperature=temperature)
    assert chi_square_p_value(got.token_ids, expected) > 1e-4


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_logprobs_are_normalised_and_right(isa, temperature):
    config = CONFIGS["odd"]
    backend = native(config, isa)
    scored = all_logprobs(backend, temperature=temperature)
    assert float(scored.exp().sum()) == pytest.approx(1.0, abs=1e-6)
    logits = reference_logits(config, random_state(config), PROMPT)[-1]
    want = (logits / temperature).log_softmax(-1)
    assert float((scored - want).abs().max()) < 0.05 / min(temperature, 1)
    # Tempering is exact: it acts on the float32 logits.
    tempered = (all_logprobs(backend) / temperature).log_softmax(-1)
    torch.testing.assert_close(scored, tempered, atol=1e-5, rtol=1e-6)


def test_a_logprob_returned_is_the_one_scored(backend):
    scored = all_logprobs(backend).float()
    got = draws(backend, range(200))
    assert torch.equal(got.logprobs, scored[got.token_ids.long()])


@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(backend, top_p):
    probabilities = all_logprobs(backend).exp()
    ordered, order = probabilities.sort(descending=True, stable=True)
    kept = int((ordered.cumsum(0) < top_p).sum()) + 1
    nucleus = torch.zeros(len(ordered), dtype=torch.bool)
    nucleus[order[:kept]] = True
    scored = all_logprobs(backend, top_p=top_p)
    assert torch.equal(scored > float("-inf"), nucleus)
    want = probabilities[nucleus].log() - probabilities[nucleus].sum().log()
    torch.testing.assert_close(scored[nucleus], want, atol=1e-5, rtol=1e-5)
    got = draws(backend, range(4000), top_p=top_p)
    assert bool(nucleus[got.token_ids.long()].all())
    assert chi_square_p_value(got.token_ids, scored.exp() * 4000) > 1e-4


def test_greedy_takes_the_first_of_equal_logits(isa):
    state = random_state(CONFIGS["odd"])
    state["lm_head.weight"][:] = state["lm_head.weight"][0]
    backend = native(CONFIGS["odd"], isa)
    backend.load(state)
    got = backend.step(make_batch([Chunk(PROMPT, 0, [0])], temperature=0))
    assert int(got.token_ids[0]) == 0
    assert float(got.logprobs[0]) == pytest.approx(-torch.tensor(97.0).log().item(), abs=1e-6)


def test_a_draw_depends_on_its_seed_alone(isa):
    """Not on the place in the batch, the other rows or the threads."""
    one = native(CONFIGS["grouped"], isa, threads=1)
    two = native(CONFIGS["grouped"], isa, threads=2)
    seeds = [2**63 - 1, -(2**63), 0, -1, 77, 123_456_789] * 30
    together = draws(two, seeds)
    assert len(set(together.token_ids.tolist())) == 6
    for place in (0, 1, 2, 5, 63, 64, 179):
        alone = draws(one, [seeds[place]])
        assert alone.token_ids[0] == together.token_ids[place]
        assert torch.equal(alone.logprobs[0], together.logprobs[place])


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_tokens_are_those_of_the_definition(backend, top_p):
    """journeyman.model.sampling over the kernels' own logprobs picks the same tokens."""
    seeds = torch.arange(2000)
    logits = all_logprobs(backend).float().repeat(2000, 1)
    want = sample(logits, torch.ones(2000), torch.full((2000,), top_p), seeds)
    got = draws(backend, seeds.tolist(), top_p=top_p)
    # A draw that falls within rounding of a border between two tokens may go either way.
    same = got.token_ids == want.token_ids
    assert int((~same).sum()) <= 2
    torch.testing.assert_close(got.logprobs[same], want.logprobs[same], atol=1e-5, rtol=1e-5)


def test_rows_may_differ_in_everything(backend):
    batch = make_batch([Chunk([t], 0, [t]) for t in range(1, 7)])
    batch.temperature[:] = torch.tensor([0, 0.5, 1, 1, 2, 0])
    batch.top_p[:] = torch.tensor([0.5, 1, 0.3, 1, 0.9, 1])
    mixed = backend.step(batch)
    for row in range(6):
        settings = {"temperature": batch.temperature[row], "top_p": float(batch.top_p[row])}
        chunk = Chunk([row + 1], 0, [row + 1])
        alone = backend.step(make_batch([chunk], seeds=[row], **settings))
        assert alone.token_ids[0] == mixed.token_ids[row]
        assert torch.equal(alone.logprobs[0], mixed.logprobs[row])
