"""What one engine step computes: the contract between the scheduler and a backend.

A step is a ragged mix of prefill chunks and decode tokens.
Axes: T new tokens, S sequences, R sampled rows.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

BLOCK = 16
"""Tokens in one block of the KV cache."""


@dataclass(frozen=True)
class StepBatch:
    """T new tokens of S sequences, sequence after sequence, in order of position.

    Example: one sequence decodes its token at position 5 (KV block 3), another prefills
    positions 0 and 1 (KV block 7) and is sampled after position 1:
    positions [5, 0, 1], slots [53, 112, 113], query_starts [0, 1, 3], context_lens [6, 2],
    block_tables [[3], [7]], sample_rows [0, 2].
    """

    token_ids: Tensor
    """int32 [T]"""
    positions: Tensor
    """int32 [T]"""
    slots: Tensor
    """int32 [T], where each token's keys and values go: block * BLOCK + offset"""
    query_starts: Tensor
    """int32 [S + 1], sequence s owns rows query_starts[s] to query_starts[s + 1]"""
    context_lens: Tensor
    """int32 [S], tokens in the KV cache after this step, new ones included"""
    block_tables: Tensor
    """int32 [S, max_blocks], padded with 0"""
    sample_rows: Tensor
    """int32 [R], indices into T whose next token is sampled"""
    temperature: Tensor
    """float32 [R], 0 is greedy"""
    top_p: Tensor
    """float32 [R], 1 keeps the whole distribution"""
    seeds: Tensor
    """int64 [R], one fresh counter-based seed per sampled token. It fixes the token: with
    u = (splitmix64(seed) >> 40) * 2**-24, the first vocabulary index whose cumulative probability
    exceeds u (see `journeyman.model.sampling`)"""


@dataclass(frozen=True)
class StepResult:
    """`logprobs` are of the distribution that was sampled from (natural log, temperature and
    top-p applied); under temperature 0 they are of the untempered distribution."""

    token_ids: Tensor
    """int32 [R]"""
    logprobs: Tensor
    """float32 [R]"""


class Backend(Protocol):
    """Holds weights and KV cache of one model and computes steps. Used by one thread."""

    def load(self, state: dict[str, Tensor]) -> None:
        """Take bf16 tensors under their Hugging Face names and pack them.

        Raises UserError naming a missing, unknown or misshapen tensor; the weights held before
        stay in use then.
        """
        ...

    def allocate(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks of BLOCK tokens; what was cached is lost."""
        ...

    def step(self, batch: StepBatch) -> StepResult:
        """Write the new tokens' keys and values, attend, and sample `sample_rows`.

        Raises EngineError naming the row when a sampled row's logits are not finite.
        """
        ...
