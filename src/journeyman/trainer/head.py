"""The language-model head, its loss and its gradient, in chunks of rows.

A loss whose terms each depend on one token's log-probability has its derivative as soon as that
log-probability is known. So each chunk's logits are turned into gradients at once and forgotten:
memory does not grow with tokens times vocabulary, and no logits are computed twice.

Axes: R rows (distinct predictions), D hidden width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from journeyman.trainer.parameters import Weight

LOGIT_ROWS = 128
"""Rows of full-precision logits alive at once."""
GRADIENT_ROWS = 1024
"""Rows of logit gradients (compute type) gathered for one product with the hidden states."""

Derivative = Callable[[slice, Tensor], Tensor]
"""derivative(rows, logprobs [r]) -> d loss / d logprob [r]"""


@dataclass(frozen=True)
class HeadResult:
    logprobs: Tensor
    """[R] natural logarithm, of the tempered distribution"""
    entropies: Tensor
    """[R] in nats"""
    gradient: Tensor
    """[R, D] d loss / d hidden"""


def log_probabilities(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0
) -> Tensor:
    """log softmax(hidden @ weight.T / temperature)[target] of each row, [R], without gradient."""
    parts = []
    for start in range(0, len(hidden), LOGIT_ROWS):
        rows = slice(start, start + LOGIT_ROWS)
        logits = _logits(hidden[rows], weight, temperature)
        parts.append(_target(logits, targets[rows]) - logits.logsumexp(-1))
    return torch.cat(parts) if parts else _wide(hidden.new_empty(0))


def head_gradient(
    hidden: Tensor,
    weight: Weight,
    targets: Tensor,
    derivative: Derivative,
    temperature: float = 1.0,
) -> HeadResult:
    """Evaluate rows `hidden` [R, D] against `targets` [R]; the head's own gradient is added to
    `weight.gradient`. Logits are FP32 at least, whatever the compute type."""
    num_rows = len(hidden)
    wide = _wide(hidden.new_empty(0)).dtype
    logprobs = torch.empty(num_rows, dtype=wide)
    entropies = torch.empty(num_rows, dtype=wide)
    gradient = torch.empty_like(hidden)
    slopes = hidden.new_empty(min(GRADIENT_ROWS, num_rows), len(weight.value))
    for outer in range(0, num_rows, GRADIENT_ROWS):
        end = min(outer + GRADIENT_ROWS, num_rows)
        for start in range(outer, end, LOGIT_ROWS):
            rows = slice(start, min(start + LOGIT_ROWS, end))
            logits = _logits(hidden[rows], weight.value, temperature)
            torch.log_softmax(logits, -1, out=logits)
            logprobs[rows] = _target(logits, targets[rows])
            upstream = derivative(rows, logprobs[rows]) / temperature
            probabilities = logits.exp()
            entropies[rows] = -torch.linalg.vecdot(probabilities, logits)
            probabilities *= -upstream[:, None]
            probabilities[torch.arange(len(upstream)), targets[rows]] += upstream
            slopes[start - outer : rows.stop - outer] = probabilities
        filled = slopes[: end - outer]
        gradient[outer:end] = filled @ weight.value
        weight.add_outer(filled, hidden[outer:end])
    return HeadResult(logprobs, entropies, gradient)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = _wide(hidden) @ _wide(weight).T
    return logits if temperature == 1.0 else logits.div_(temperature)


def _target(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(1, targets[:, None])[:, 0]
