"""Sampling: exact distributions, determinism, and refusal of broken logits."""

import pytest
import torch

from journeyman.model.sampling import sample, uniforms
from journeyman.types import EngineError


def draw(logits, temperature=1.0, top_p=1.0, seeds=None):
    rows = len(logits)
    seeds = torch.arange(rows) if seeds is None else seeds
    return sample(
        logits, torch.full((rows,), temperature), torch.full((rows,), top_p), seeds.long()
    )


def test_uniforms_are_splitmix64():
    # First output of the reference generator seeded with 0 is 0xE220A8397B1DCDAF.
    assert uniforms(torch.tensor([0])).item() == (0xE220A8397B1DCDAF >> 40) / 2**24
    many = uniforms(torch.arange(-50_000, 50_000))
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 0.005


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.8)])
def test_frequencies_and_logprobs_are_of_the_stated_distribution(temperature, top_p):
    logits = torch.tensor([2.0, 0.5, 1.0, -1.0, 0.0])
    expected = (logits / temperature).softmax(-1)
    order = expected.argsort(descending=True)
    keep = order[: int((expected[order].cumsum(-1) < top_p).sum()) + 1] if top_p < 1 else order
    expected = torch.zeros(5).scatter(0, keep, expected[keep])
    expected /= expected.sum()
    result = draw(logits.repeat(40_000, 1), temperature, top_p)
    seen = torch.bincount(result.token_ids.long(), minlength=5) / 40_000
    torch.testing.assert_close(seen, expected, atol=0.01, rtol=0)
    torch.testing.assert_close(result.logprobs.exp(), expected[result.token_ids.long()])
    assert (seen[expected == 0] == 0).all()


def test_a_row_does_not_depend_on_its_batch():
    torch.manual_seed(1)
    logits = torch.randn(64, 1000)
    seeds = torch.randint(-(2**62), 2**62, (64,))
    whole = draw(logits, seeds=seeds)
    for row in (0, 31, 63):
        alone = draw(logits[row : row + 1], seeds=seeds[row : row + 1])
        assert alone.token_ids[0] == whole.token_ids[row]
        assert alone.logprobs[0] == whole.logprobs[row]


def test_greedy_takes_the_first_maximum_at_temperature_one():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    result = draw(logits, temperature=0.0)
    assert result.token_ids.tolist() == [1]
    torch.testing.assert_close(result.logprobs, logits.log_softmax(-1)[:, 1])


def test_a_tiny_top_p_is_greedy_with_certainty():
    result = draw(torch.randn(100, 50), temperature=1.5, top_p=1e-6)
    assert (result.logprobs == 0).all()


def test_an_impossible_token_is_never_drawn():
    logits = torch.full((5000, 20), -200.0)
    logits[:, 7] = 10.0
    assert (draw(logits).token_ids == 7).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_an_error_naming_the_row(value):
    logits = torch.zeros(4, 30)
    logits[2, 29] = value
    with pytest.raises(EngineError, match="row 2 are not finite"):
        draw(logits)
