"""What one step reports."""

from journeyman.types import Value


class StepMetrics(Value):
    """Of one optimiser step. Means are over the batch's sampled tokens."""

    step: int
    """Number of the policy version this step made."""
    loss: float
    """Sum over sampled tokens divided by their number."""
    tokens: int
    """Sampled tokens in the loss, counted per sample."""
    nodes: int
    """Tokens run through the model."""
    stream_tokens: int
    """Tokens that would have been run had no prefix been shared."""
    packs: int
    empty_samples: int = 0
    """Samples without a sampled token: nothing to learn from."""
    gradient_norm: float
    learning_rate: float
    entropy: float
    """Mean, in nats, of the distributions the tokens were drawn from."""
    mean_logprob: float
    clip_fraction: float | None = None
    """Share of tokens whose gradient the ratio's bounds cut off. Policy loss only."""
    mean_ratio: float | None = None
    """Mean of present over behaviour probability. Policy loss only."""
    max_logprob_difference: float | None = None
    """Parity: the largest |trainer - engine| log-probability over tokens that were sampled under
    the very version this step started from; None when there was no such token."""
    mean_logprob_difference: float | None = None
    parity_tokens: int = 0
    forward_s: float
    head_s: float
    """Head, loss and their gradients."""
    backward_s: float
    optimiser_s: float
    total_s: float

    @property
    def saved(self) -> float:
        """Share of tokens that sharing prefixes saved, in [0, 1)."""
        return 1 - self.nodes / self.stream_tokens
