"""Sums over the packs of a step, and the metrics they end as."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from journeyman.trainer.losses import Behaviour, PolicyLoss, TokenLoss
from journeyman.trainer.metrics import StepMetrics
from journeyman.trainer.trie import Pack


@dataclass
class Tally:
    """Figures of one step while its packs go by."""

    num_tokens: int
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    parity_tokens: int = 0
    max_difference: float = 0.0

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the block's wall-clock seconds to `stage`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - started

    def add(
        self,
        logprobs: Tensor,
        entropies: Tensor,
        behaviour: Behaviour,
        loss: TokenLoss,
        version: int,
    ) -> None:
        """One pack's tokens, [K] each, under the weights of `version`."""
        logprobs = logprobs.to(behaviour.logprobs.dtype)
        self.sums["loss"] += float(loss.terms(logprobs, slice(None)).sum())
        self.sums["entropy"] += float(entropies.sum())
        self.sums["logprob"] += float(logprobs.sum())
        if not isinstance(loss, PolicyLoss):
            return
        gap = logprobs - behaviour.logprobs
        self.sums["ratio"] += float(gap.exp().sum())
        self.sums["clipped"] += loss.num_clipped(logprobs)
        difference = gap[behaviour.versions == version].abs()
        if len(difference):
            self.parity_tokens += len(difference)
            self.max_difference = max(self.max_difference, float(difference.max()))
            self.sums["difference"] += float(difference.sum())

    def metrics(
        self,
        *,
        step: int,
        packs: Sequence[Pack],
        empty_samples: int,
        gradient_norm: float,
        learning_rate: float,
        policy: bool,
        total_s: float,
    ) -> StepMetrics:
        """The step's report."""
        mean = {name: total / self.num_tokens for name, total in self.sums.items()}
        parity = self.parity_tokens
        return StepMetrics(
            step=step,
            loss=mean["loss"],
            tokens=self.num_tokens,
            nodes=sum(len(pack.token_ids) for pack in packs),
            stream_tokens=sum(pack.num_stream_tokens for pack in packs),
            packs=len(packs),
            empty_samples=empty_samples,
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            entropy=mean["entropy"],
            mean_logprob=mean["logprob"],
            clip_fraction=mean["clipped"] if policy else None,
            mean_ratio=mean["ratio"] if policy else None,
            max_logprob_difference=self.max_difference if parity else None,
            mean_logprob_difference=self.sums["difference"] / parity if parity else None,
            parity_tokens=parity,
            **{f"{stage}_s": seconds for stage, seconds in self.seconds.items()},
            total_s=total_s,
        )
