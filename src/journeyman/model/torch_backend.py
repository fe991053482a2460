"""The reference backend: the model's own torch code over a paged KV cache.

Axes: T new tokens, S sequences, C cached tokens, Hq query heads, Hkv KV heads, Dh head width.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from journeyman.model.checkpoint import check_state
from journeyman.model.config import ModelConfig
from journeyman.model.llama import Llama
from journeyman.model.sampling import sample
from journeyman.model.step import BLOCK, StepBatch, StepResult
from journeyman.types import EngineError


class TorchBackend:
    """Plain torch operations on the CPU, in the type of the loaded tensors.

    That is bf16 when serving. With float32 tensors it is a sharper reference: bf16 products of
    torch depend on the number of rows, and so does a step's result in the last bits.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._model: Llama | None = None
        self._head = torch.empty(0)
        self._cache = torch.empty(0)
        self._num_blocks = 0

    def load(self, state: Mapping[str, Tensor]) -> None:
        """See `Backend.load`. The tensors are copied."""
        check_state(state, self.config)
        with torch.device("meta"):
            model = Llama(self.config)
        copies = {name: tensor.detach().clone() for name, tensor in state.items()}
        model.load_state_dict(copies, strict=True, assign=True)
        self._model = model.eval().requires_grad_(False)
        self._head = model.lm_head_weight.detach().float()
        self.allocate(self._num_blocks)

    def allocate(self, num_blocks: int) -> None:
        """See `Backend.allocate`."""
        self._num_blocks = num_blocks
        shape = (self.config.num_layers, 2, num_blocks * BLOCK)
        kv_shape = (self.config.num_kv_heads, self.config.head_dim)
        kind = torch.bfloat16 if self._model is None else self._model.lm_head_weight.dtype
        self._cache = torch.zeros((*shape, *kv_shape), dtype=kind)

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> StepResult:
        """See `Backend.step`."""
        if self._model is None:
            raise EngineError("the backend holds no weights", "call load() first")
        attention = PagedAttention(self._cache, batch)
        hidden = self._model(batch.token_ids.long(), batch.positions, attention)
        rows = hidden[batch.sample_rows.long()]
        with _bf16_products() if rows.dtype == torch.bfloat16 else nullcontext():
            logits = rows.float() @ self._head.T
        return sample(logits, batch.temperature, batch.top_p, batch.seeds)


@contextmanager
def _bf16_products() -> Iterator[None]:
    """Float32 matrices that hold bf16 values: multiply as bf16, accumulate and return float32.

    Plain bf16 products would round the logits to 8 bits, and with them the log-probabilities.
    """
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


@dataclass(frozen=True)
class Prefill:
    """One sequence with several new tokens."""

    rows: slice
    """Of the step's T tokens."""
    slots: Tensor
    """int64 [C]"""
    mask: Tensor
    """bool [new tokens, C], true where a query may look"""


class PagedAttention:
    """The `attend` of one step: writes new keys and values, then attends over the cache."""

    def __init__(self, cache: Tensor, batch: StepBatch) -> None:
        self._cache = cache
        self._new_slots = batch.slots.long()
        starts = batch.query_starts.tolist()
        contexts = batch.context_lens.tolist()
        offsets = torch.arange(BLOCK)
        slots = (batch.block_tables.long()[:, :, None] * BLOCK + offsets).flatten(1)
        lengths = batch.query_starts.diff()
        decoding = (lengths == 1).nonzero()[:, 0]
        longest = int(batch.context_lens[decoding].max()) if len(decoding) else 0
        self._decode_rows = batch.query_starts[decoding].long()
        self._decode_slots = slots[decoding, :longest]
        self._decode_mask = torch.arange(longest) < batch.context_lens[decoding][:, None]
        self._prefills = [
            _prefill(starts[s], starts[s + 1], slots[s, : contexts[s]])
            for s in (lengths > 1).nonzero()[:, 0].tolist()
        ]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[T, Hq, Dh] as `journeyman.model.llama.Attend` says."""
        keys, values = self._cache[layer]
        keys[self._new_slots] = key
        values[self._new_slots] = value
        mixed = torch.empty_like(query)
        if len(self._decode_rows):
            mixed[self._decode_rows] = self._decode(query[self._decode_rows], keys, values)
        for prefill in self._prefills:
            mixed[prefill.rows] = functional.scaled_dot_product_attention(
                query[prefill.rows].transpose(0, 1),
                keys[prefill.slots].transpose(0, 1),
                values[prefill.slots].transpose(0, 1),
                attn_mask=prefill.mask,
                enable_gqa=True,
            ).transpose(0, 1)
        return mixed

    def _decode(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """One query per sequence. The queries that share a KV head form its query axis."""
        count, heads, width = query.shape
        kv_heads = keys.shape[1]
        attended = functional.scaled_dot_product_attention(
            query.view(count, kv_heads, heads // kv_heads, width),
            keys[self._decode_slots].transpose(1, 2),
            values[self._decode_slots].transpose(1, 2),
            attn_mask=self._decode_mask[:, None, None, :],
        )
        return attended.reshape(count, heads, width)


def _prefill(start: int, end: int, slots: Tensor) -> Prefill:
    context = len(slots)
    newest = torch.arange(context - (end - start), context)
    mask = torch.arange(context) <= newest[:, None]
    return Prefill(rows=slice(start, end), slots=slots, mask=mask)
