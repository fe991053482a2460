"""What a step minimises, per sampled token, and what it reports.

Axes: K sampled tokens of samples (a pack's, in order of its rows).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from journeyman.trainer.trie import Pack
from journeyman.types import Sample

LossKind = Literal["supervised", "policy"]


class TokenLoss(Protocol):
    """Loss terms of a pack's tokens; each depends on its own log-probability alone."""

    def terms(self, logprobs: Tensor, tokens: slice) -> Tensor:
        """Of `tokens`, with their `logprobs` under the present weights; differentiable."""
        ...


@dataclass(frozen=True)
class SupervisedLoss:
    """Negative log-likelihood of the marked tokens. Advantages weigh nothing here."""

    def terms(self, logprobs: Tensor, tokens: slice) -> Tensor:
        """[k] -> [k]"""
        return -logprobs


@dataclass(frozen=True)
class PolicyLoss:
    """Clipped policy gradient (PPO, arXiv 1707.06347) with group advantages (GRPO, 2402.03300).

    The bounds may differ (DAPO, arXiv 2503.14476): a wider upper one lets rare tokens rise. Terms
    are not divided by the episode's length (Dr. GRPO, arXiv 2503.20783): that would make long
    wrong answers cheap. The trainer divides their sum by the batch's number of sampled tokens, one
    constant for all, which keeps the gradient norm comparable between steps.
    """

    advantages: Tensor
    """[K]"""
    behaviour: Tensor
    """[K] log-probabilities under the policy that sampled"""
    clip_below: float
    clip_above: float

    def terms(self, logprobs: Tensor, tokens: slice) -> Tensor:
        """[k] -> [k]"""
        advantages = self.advantages[tokens]
        ratio = torch.exp(logprobs - self.behaviour[tokens])
        clipped = ratio.clamp(1 - self.clip_below, 1 + self.clip_above)
        return -torch.minimum(ratio * advantages, clipped * advantages)

    def num_clipped(self, logprobs: Tensor) -> int:
        """Tokens without gradient because they moved far enough already. [K]"""
        ratio = torch.exp(logprobs - self.behaviour)
        risen = (self.advantages > 0) & (ratio > 1 + self.clip_above)
        fallen = (self.advantages < 0) & (ratio < 1 - self.clip_below)
        return int((risen | fallen).sum())


@dataclass(frozen=True)
class Behaviour:
    """What was recorded of a pack's tokens when they were sampled, [K] each."""

    logprobs: Tensor
    versions: Tensor
    advantages: Tensor

    @classmethod
    def of(cls, pack: Pack, samples: Sequence[Sample], dtype: torch.dtype) -> "Behaviour":
        """Gathered from the samples in the pack's token order."""
        pairs = list(zip(pack.token_samples.tolist(), pack.token_indices.tolist(), strict=True))
        return cls(
            torch.tensor([samples[s].stream.logprobs[i] for s, i in pairs], dtype=dtype),
            torch.tensor([samples[s].stream.versions[i] for s, i in pairs]),
            torch.tensor([samples[s].advantage for s, _ in pairs], dtype=dtype),
        )
