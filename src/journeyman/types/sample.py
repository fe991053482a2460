"""What the trainer learns from: token in, token out, never re-tokenised."""

from pydantic import model_validator

from journeyman.types.value import Value


class TokenStream(Value):
    """One unbroken token stream, arrays all of length n.

    `loss_mask` is true on sampled tokens. `logprobs` and `versions` are of the sampling
    distribution and policy on those tokens; elsewhere 0.0 and -1.
    Example: prompt [1, 2], sampled [7, 8], tool result [3] →
    token_ids (1,2,7,8,3), loss_mask (F,F,T,T,F), versions (-1,-1,4,4,-1).
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]

    @model_validator(mode="after")
    def _aligned(self) -> "TokenStream":
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"arrays of a token stream differ in length: {sorted(lengths)}")
        missing = [i for i, on in enumerate(self.loss_mask) if on and self.versions[i] < 0]
        if missing:
            raise ValueError(f"sampled token at position {missing[0]} has no policy version")
        return self


class Sample(Value):
    """One stream with its advantage (one per episode, shared by all its sampled tokens)."""

    episode: str
    group: str
    stream: TokenStream
    advantage: float


class Batch(Value):
    """Everything one optimiser step consumes. Persisted before it is applied."""

    step: int
    samples: tuple[Sample, ...]
