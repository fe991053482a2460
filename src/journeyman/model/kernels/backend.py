"""The native backend: see `journeyman.model.step` for what a step is.

Axes: T new tokens, S sequences, R sampled rows.
"""

import ctypes
import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from journeyman.model.checkpoint import check_state
from journeyman.model.config import ModelConfig
from journeyman.model.kernels.instructions import choose
from journeyman.model.kernels.library import (
    PER_LAYER,
    Batch,
    Message,
    Shape,
    Weights,
    dense,
    library,
)
from journeyman.model.kernels.threads import thread_count
from journeyman.model.rope import inverse_frequencies, rotation
from journeyman.model.step import StepBatch, StepResult
from journeyman.types import EngineError, UserError

MOST_HEAD_DIM = 256
HF_NAMES = {
    "input_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "inner_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
DAMAGED = "the batch breaks the contract of journeyman.model.step, or the weights are damaged"


class NativeBackend:
    """One native call per step, bf16 weights and activations, float32 sums.

    A token's logprob is the same bits whatever else is in the batch, however its prompt was cut
    into chunks, and with any number of threads. It differs by rounding between instruction sets.
    """

    def __init__(
        self, config: ModelConfig, *, isa: str | None = None, threads: int | None = None
    ) -> None:
        """Raises UserError when `isa` cannot be had here or the shape is not supported."""
        if config.head_dim > MOST_HEAD_DIM:
            raise UserError(
                f"head_dim {config.head_dim} is more than the kernels' {MOST_HEAD_DIM}",
                "use the torch backend for this model",
            )
        self.config = config
        self.isa = choose(isa)
        self.threads = thread_count(threads)
        self._library = library(self.isa)
        message = Message()
        cosine, sine = rotation_tables(config)
        shape = native_shape(config, cosine, sine)
        self._handle = self._library.journeyman_model(
            ctypes.byref(shape), self.threads, message.buffer
        )
        if not self._handle:
            raise message.error("free memory, or choose another instruction set")
        weakref.finalize(self, self._library.journeyman_free_model, self._handle)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """See `Backend.load`. The tensors are copied; the KV cache is kept."""
        check_state(state, self.config)
        tensors = {name: dense(tensor, torch.bfloat16) for name, tensor in state.items()}
        weights, message = native_weights(tensors, self.config), Message()
        if self._library.journeyman_load(self._handle, ctypes.byref(weights), message.buffer):
            raise message.error("free memory")

    def allocate(self, num_blocks: int) -> None:
        """See `Backend.allocate`."""
        message = Message()
        if self._library.journeyman_allocate(self._handle, num_blocks, message.buffer):
            raise message.error(f"ask for fewer than {num_blocks} blocks of KV cache")

    def step(self, batch: StepBatch) -> StepResult:
        """See `Backend.step`. Raises EngineError also for indices out of range."""
        return self._run(batch, None)

    def score(self, batch: StepBatch, targets: Tensor) -> StepResult:
        """A step that samples nothing: the logprobs of `targets` int32 [R] after `sample_rows`,
        by the same operations as `step`, so for what `step` sampled they are the same bits.

        Temperature 0 gives the untempered logprob. A target outside the nucleus has -inf.
        """
        if len(targets) != len(batch.sample_rows):
            raise EngineError(
                f"{len(targets)} targets for {len(batch.sample_rows)} sampled rows",
                "give one target per sampled row",
            )
        return self._run(batch, targets)

    def _run(self, batch: StepBatch, targets: Tensor | None) -> StepResult:
        tensors = _tensors(batch, targets)
        _check_lengths(tensors)
        sampled = len(tensors["sample_rows"])
        token_ids = torch.empty(sampled, dtype=torch.int32)
        logprobs = torch.empty(sampled)
        native = Batch(
            tokens=len(tensors["token_ids"]),
            sequences=len(tensors["context_lens"]),
            table_width=tensors["block_tables"].shape[1],
            sampled=sampled,
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
        )
        message = Message()
        if self._library.journeyman_step(
            self._handle,
            ctypes.byref(native),
            token_ids.data_ptr(),
            logprobs.data_ptr(),
            message.buffer,
        ):
            raise message.error(DAMAGED)
        return StepResult(token_ids=token_ids, logprobs=logprobs)


def native_shape(config: ModelConfig, cosine: Tensor, sine: Tensor) -> Shape:
    """Holds pointers into the tables, which must outlive the call that reads it."""
    return Shape(
        vocabulary=config.vocab_size,
        width=config.hidden_size,
        inner=config.intermediate_size,
        layers=config.num_layers,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        positions=config.max_positions,
        epsilon=config.norm_eps,
        cosine=cosine.data_ptr(),
        sine=sine.data_ptr(),
    )


def rotation_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """The torch model's own angles, float32 [positions, Dh / 2] each."""
    frequencies = inverse_frequencies(config.rope, config.head_dim)
    cosine, sine = rotation(torch.arange(config.max_positions), frequencies, torch.float32)
    half = config.head_dim // 2
    return cosine[:, :half].contiguous(), sine[:, :half].contiguous()


def native_weights(state: Mapping[str, Tensor], config: ModelConfig) -> Weights:
    """Pointers into `state`, which must outlive the result."""
    head = state.get("lm_head.weight")
    weights = Weights(
        embedding=state["model.embed_tokens.weight"].data_ptr(),
        final_norm=state["model.norm.weight"].data_ptr(),
        head=None if head is None else head.data_ptr(),
    )
    for name in PER_LAYER:
        addresses = [
            state[f"model.layers.{layer}.{HF_NAMES[name]}.weight"].data_ptr()
            for layer in range(config.num_layers)
        ]
        setattr(weights, name, (ctypes.c_void_p * len(addresses))(*addresses))
    return weights


def _tensors(batch: StepBatch, targets: Tensor | None) -> dict[str, Tensor]:
    int32 = torch.int32
    tensors = {
        "token_ids": dense(batch.token_ids, int32),
        "positions": dense(batch.positions, int32),
        "slots": dense(batch.slots, int32),
        "query_starts": dense(batch.query_starts, int32),
        "context_lens": dense(batch.context_lens, int32),
        "block_tables": dense(batch.block_tables, int32),
        "sample_rows": dense(batch.sample_rows, int32),
        "temperature": dense(batch.temperature, torch.float32),
        "top_p": dense(batch.top_p, torch.float32),
        "seeds": dense(batch.seeds, torch.int64),
    }
    if targets is not None:
        tensors["targets"] = dense(targets, int32)
    return tensors


def _check_lengths(tensors: Mapping[str, Tensor]) -> None:
    """What the kernels cannot see: that the arrays are as long as each other."""
    tokens, sampled = len(tensors["token_ids"]), len(tensors["sample_rows"])
    sequences = len(tensors["context_lens"])
    expected = {
        "positions": tokens,
        "slots": tokens,
        "query_starts": sequences + 1,
        "block_tables": sequences,
        "temperature": sampled,
        "top_p": sampled,
        "seeds": sampled,
    }
    for name, length in expected.items():
        if len(tensors[name]) != length:
            raise EngineError(f"{name} has length {len(tensors[name])}, not {length}", DAMAGED)
    if tensors["block_tables"].dim() != 2:
        raise EngineError("block_tables is not a matrix [S, max_blocks]", DAMAGED)
