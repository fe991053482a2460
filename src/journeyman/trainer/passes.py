"""Forward and backward passes of one pack: what the trainer needs of whoever computes them.

Axes: N nodes, R rows (distinct predictions) of a pack.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from journeyman.trainer.trie import Pack

Derivative = Callable[[slice, Tensor], Tensor]
"""derivative(rows, logprobs [r]) -> d loss / d logprob [r]"""


@dataclass(frozen=True)
class Scores:
    """Of a pack's rows, under the tempered distribution."""

    logprobs: Tensor
    """[R] natural logarithm"""
    entropies: Tensor
    """[R] in nats"""


class Passes(Protocol):
    """Called in this order for each pack: forward, score, backward; `refresh` after each step."""

    @property
    def arithmetic(self) -> str:
        """Names what the last bits of a step depend on."""
        ...

    def refresh(self) -> None:
        """The compute weights have changed."""
        ...

    def forward(self, pack: Pack) -> None:
        """Hidden states of all nodes."""
        ...

    def score(self, temperature: float, derivative: Derivative | None = None) -> Scores:
        """Log-probabilities of the pack's rows. With `derivative` the head's gradient is added,
        and `backward` must follow."""
        ...

    def backward(self) -> None:
        """Add the gradients of everything below the head."""
        ...
