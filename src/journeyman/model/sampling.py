"""Choosing tokens from logits; every backend follows this definition.

One uniform number per token walks the cumulative distribution in vocabulary order, so a token is
a function of its logits and its seed alone: batch size and position in the batch do not matter.

Axes: R rows, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from journeyman.model.step import StepResult
from journeyman.types import EngineError

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(values: np.ndarray) -> np.ndarray:
    """One step of splitmix64 (Steele, Lea and Flood, 2014) on each uint64."""
    mixed: np.ndarray = values + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


def uniforms(seeds: Tensor) -> Tensor:
    """Seeds int64 [R] to numbers in [0, 1), float32 [R], multiples of 2**-24."""
    mixed = splitmix64(seeds.numpy().view(np.uint64))
    top = (mixed >> np.uint64(40)).astype(np.float32)
    return torch.from_numpy(top * np.float32(2.0**-24))


def sample(logits: Tensor, temperature: Tensor, top_p: Tensor, seeds: Tensor) -> StepResult:
    """Tokens and their log-probabilities from float32 logits [R, V].

    Temperature 0 takes the largest logit (the first of equals) and reports its log-probability
    at temperature 1. Otherwise logits are divided by the temperature, then top-p keeps the
    smallest set of likeliest tokens whose mass reaches it (the first of equals first), and the
    log-probability is that of the renormalised rest. Raises EngineError when a row's logits are
    not finite.
    """
    _require_finite(logits)
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]
    logprobs = torch.log_softmax(scaled, dim=-1)
    tokens = torch.empty(len(logits), dtype=torch.int64)
    if bool(greedy.any()):
        tokens[greedy] = logits[greedy].argmax(-1)
    drawn = ~greedy
    if bool(drawn.any()):
        cut = (top_p < 1) & drawn
        if bool(cut.any()):
            logprobs[cut] = _nucleus(logprobs[cut], top_p[cut])
        tokens[drawn] = _draw(logprobs[drawn], uniforms(seeds[drawn]))
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return StepResult(token_ids=tokens.int(), logprobs=chosen)


def _require_finite(logits: Tensor) -> None:
    # A NaN or an infinity anywhere in a row survives into its sum.
    broken = (~logits.sum(-1).isfinite()).nonzero()
    if len(broken):
        row = int(broken[0])
        raise EngineError(
            f"the logits of sampled row {row} are not finite "
            f"({int((~logits[row].isfinite()).sum())} of {logits.shape[1]} values)",
            "the weights or the KV cache are damaged: load the last good policy version",
        )


def _nucleus(logprobs: Tensor, top_p: Tensor) -> Tensor:
    """Log-probabilities [R, V] within the nucleus, -inf outside."""
    ordered, order = logprobs.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.exp()
    before = probabilities.cumsum(-1) - probabilities
    outside = before >= top_p[:, None]
    outside[:, 0] = False
    kept = ordered.masked_fill(outside, float("-inf"))
    kept = kept - kept.logsumexp(-1, keepdim=True)
    return torch.empty_like(kept).scatter_(1, order, kept)


def _draw(logprobs: Tensor, uniform: Tensor) -> Tensor:
    cumulative = logprobs.exp().cumsum(-1)
    total = cumulative[:, -1:]
    # Rounding may lift u * total to total, which no index exceeds.
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros(())))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
