"""Passes in C++ around the engine's own kernels.

The forward pass runs the operations of the engine's in the engine's order, so that the
log-probability of a sampled token is the same bits on both sides; and no sum depends on the number
of threads. Weight gradients are summed in FP32.

Axes: N nodes, S segments, R rows (distinct predictions) of a pack.
"""

import ctypes
import logging
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from journeyman.model import ModelConfig
from journeyman.model.kernels.backend import (
    HF_NAMES,
    MOST_HEAD_DIM,
    native_shape,
    native_weights,
    rotation_tables,
)
from journeyman.model.kernels.instructions import choose
from journeyman.model.kernels.library import Message
from journeyman.model.kernels.threads import thread_count
from journeyman.trainer.cache_layout import cache_layout
from journeyman.trainer.native_library import (
    PER_LAYER,
    NativeGradients,
    NativePack,
    training_library,
)
from journeyman.trainer.parameters import Parameters
from journeyman.trainer.passes import Derivative, Passes, Scores
from journeyman.trainer.plain import PlainPasses
from journeyman.trainer.trie import Pack
from journeyman.types import UserError

LOGIT_ROWS = 128
"""Rows of logits alive at once, as in native/training.h."""
MULTIPLE = 32
"""What every width must divide by."""
FIRST_OF = {"query_key_value": "query", "gate_up": "gate"}
log = logging.getLogger(__name__)


def make_passes(config: ModelConfig, parameters: Parameters, name: str = "auto") -> Passes:
    """`native`, `torch`, or `auto`: native where it can be compiled and supports the model.

    Raises UserError for an unknown name, or when `native` cannot be had.
    """
    if name not in ("auto", "native", "torch"):
        raise UserError(f"no passes are called {name!r}", "known: auto, native, torch")
    if name == "torch" or (name == "auto" and parameters.compute.dtype != torch.bfloat16):
        return PlainPasses(config, parameters)
    try:
        return NativePasses(config, parameters)
    except UserError as error:
        if name == "native":
            raise
        log.warning("training steps are computed by torch, which is slower: %s", error)
        return PlainPasses(config, parameters)


class NativePasses:
    """See `Passes`."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        *,
        isa: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Raises UserError when the model's shape is not supported or nothing can compile."""
        _check(config, parameters)
        self.config = config
        self.isa = choose(isa)
        self._parameters = parameters
        self._library = training_library(self.isa)
        message = Message()
        cosine, sine = rotation_tables(config)
        shape = native_shape(config, cosine, sine)
        self._handle = self._library.journeyman_training(
            ctypes.byref(shape), thread_count(threads), message.buffer
        )
        if not self._handle:
            raise message.error("free memory, or train with passes='torch'")
        weakref.finalize(self, self._library.journeyman_free_training, self._handle)
        self._gradients = _gradients(config, parameters)
        self._pack: Pack | None = None
        self.refresh()

    @property
    def arithmetic(self) -> str:
        """Bits depend on the instruction set alone."""
        return f"native {self.isa.name}"

    def refresh(self) -> None:
        """See `Passes.refresh`: the kernels hold packed copies."""
        state = dict(self._parameters.named(self._parameters.compute))
        self._call("training_load", ctypes.byref(native_weights(state, self.config)))

    def forward(self, pack: Pack) -> None:
        """See `Passes.forward`."""
        self._pack = pack
        self._native, self._kept = _native_pack(pack)
        self._call("forward", ctypes.byref(self._native))

    def score(self, temperature: float, derivative: Derivative | None = None) -> Scores:
        """See `Passes.score`."""
        if self._pack is None:
            raise ValueError("score follows forward")
        rows = torch.from_numpy(self._pack.row_nodes).int()
        targets = torch.from_numpy(self._pack.row_targets).int()
        self._call("choose_rows", rows.data_ptr(), len(rows))
        scores = Scores(torch.empty(len(rows)), torch.empty(len(rows)))
        for start in range(0, len(rows), LOGIT_ROWS):
            part = slice(start, min(start + LOGIT_ROWS, len(rows)))
            self._call(
                "score",
                start,
                part.stop - start,
                targets[part].data_ptr(),
                temperature,
                scores.logprobs[part].data_ptr(),
                scores.entropies[part].data_ptr(),
            )
            if derivative is not None:
                slopes = derivative(part, scores.logprobs[part]).float().contiguous()
                self._call("add_slopes", slopes.data_ptr(), self._gradients.head)
        return scores

    def backward(self) -> None:
        """See `Passes.backward`."""
        self._call("backward", ctypes.byref(self._native), ctypes.byref(self._gradients))

    def _call(self, name: str, *arguments: Any) -> None:
        message = Message()
        function = getattr(self._library, f"journeyman_{name}")
        if function(self._handle, *arguments, message.buffer):
            raise message.error("free memory, or lower max_nodes")


def _check(config: ModelConfig, parameters: Parameters) -> None:
    cure = "train with passes='torch'"
    types = (parameters.compute.dtype, parameters.master.dtype)
    if types != (torch.bfloat16, torch.float32):
        raise UserError(f"the native passes compute in bf16 over float32, not {types}", cure)
    widths = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "head_dim": config.head_dim,
    }
    for name, width in widths.items():
        if width % MULTIPLE:
            raise UserError(f"{name} {width} is no multiple of {MULTIPLE}", cure)
    if config.head_dim > MOST_HEAD_DIM:
        raise UserError(f"head_dim {config.head_dim} is more than {MOST_HEAD_DIM}", cure)


def _gradients(config: ModelConfig, parameters: Parameters) -> NativeGradients:
    """Pointers into the flat gradient buffer, which never moves."""
    views = dict(parameters.named(parameters.gradient))
    embedding = views["model.embed_tokens.weight"].data_ptr()
    head = embedding if config.tied_embeddings else views["lm_head.weight"].data_ptr()
    gradients = NativeGradients(
        embedding=embedding, final_norm=views["model.norm.weight"].data_ptr(), head=head
    )
    for name in PER_LAYER:
        part = HF_NAMES[FIRST_OF.get(name, name)]
        addresses = [
            views[f"model.layers.{layer}.{part}.weight"].data_ptr()
            for layer in range(config.num_layers)
        ]
        setattr(gradients, name, (ctypes.c_void_p * len(addresses))(*addresses))
    return gradients


def _native_pack(pack: Pack) -> tuple[NativePack, list[Tensor]]:
    """The structure, and the arrays it points into."""
    layout = cache_layout(pack)
    ends = [segment.end for segment in pack.segments]
    for index in range(len(ends) - 1, -1, -1):
        for above in pack.segments[index].context:
            ends[above] = max(ends[above], ends[index])
    arrays = {
        "token_ids": pack.token_ids,
        "positions": pack.positions,
        "segment_starts": [*(segment.start for segment in pack.segments), len(pack.token_ids)],
        "descendants": ends,
        "block_tables": layout.block_tables,
        "slot_starts": layout.slot_starts,
        "slots": layout.slots,
    }
    kept = {name: torch.from_numpy(np.array(rows, dtype=np.int32)) for name, rows in arrays.items()}
    native = NativePack(
        nodes=len(pack.token_ids),
        segments=len(pack.segments),
        table_width=layout.block_tables.shape[1],
        blocks=layout.num_blocks,
        **{name: tensor.data_ptr() for name, tensor in kept.items()},
    )
    return native, list(kept.values())
