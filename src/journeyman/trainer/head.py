"""The language-model head, its loss and its gradient, in chunks of rows.

A loss whose terms each depend on one token's log-probability has its derivative as soon as that
log-probability is known. So each chunk's logits are turned into gradients at once and forgotten:
memory does not grow with tokens times vocabulary, and no logits are computed twice.

Axes: R rows (distinct predictions), D hidden width, V vocabulary.
"""

import torch
from torch import Tensor

from journeyman.trainer.parameters import Weight
from journeyman.trainer.passes import Derivative, Scores

LOGIT_ROWS = 128
"""Rows of full-precision logits alive at once."""
GRADIENT_ROWS = 1024
"""Rows of logit gradients (compute type) gathered for one product with the hidden states."""


def head_scores(
    hidden: Tensor, weight: Weight, targets: Tensor, temperature: float = 1.0
) -> Scores:
    """log softmax(hidden @ weight.T / temperature)[target] and entropy of each row."""
    scores = _room(hidden)
    for start in range(0, len(hidden), LOGIT_ROWS):
        rows = slice(start, start + LOGIT_ROWS)
        _score(scores, rows, _logits(hidden[rows], weight, temperature), targets)
    return scores


def head_gradient(
    hidden: Tensor,
    weight: Weight,
    targets: Tensor,
    derivative: Derivative,
    temperature: float = 1.0,
) -> tuple[Scores, Tensor]:
    """Scores of rows `hidden` [R, D], and d loss / d hidden [R, D]; the head's own gradient is
    added to `weight.gradient`. Logits are FP32 at least, whatever the compute type."""
    num_rows = len(hidden)
    scores = _room(hidden)
    gradient = torch.empty_like(hidden)
    slopes = hidden.new_empty(min(GRADIENT_ROWS, num_rows), len(weight.value))
    for outer in range(0, num_rows, GRADIENT_ROWS):
        end = min(outer + GRADIENT_ROWS, num_rows)
        for start in range(outer, end, LOGIT_ROWS):
            rows = slice(start, min(start + LOGIT_ROWS, end))
            logits = _logits(hidden[rows], weight, temperature)
            probabilities = _score(scores, rows, logits, targets)
            upstream = derivative(rows, scores.logprobs[rows]) / temperature
            probabilities *= -upstream[:, None]
            probabilities[torch.arange(len(upstream)), targets[rows]] += upstream
            slopes[start - outer : rows.stop - outer] = probabilities
        filled = slopes[: end - outer]
        gradient[outer:end] = filled @ weight.value
        weight.add_outer(filled, hidden[outer:end])
    return scores, gradient


def _room(hidden: Tensor) -> Scores:
    wide = _wide(hidden.new_empty(0)).dtype
    return Scores(*(torch.empty(len(hidden), dtype=wide) for _ in range(2)))


def _score(scores: Scores, rows: slice, logits: Tensor, targets: Tensor) -> Tensor:
    """Fill in `rows` and return their probabilities; `logits` become log-probabilities."""
    torch.log_softmax(logits, -1, out=logits)
    scores.logprobs[rows] = logits.gather(1, targets[rows, None])[:, 0]
    probabilities = logits.exp()
    scores.entropies[rows] = -torch.linalg.vecdot(probabilities, logits)
    return probabilities


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _logits(hidden: Tensor, weight: Weight, temperature: float) -> Tensor:
    logits = _wide(hidden) @ _wide(weight.value).T
    return logits if temperature == 1.0 else logits.div_(temperature)
