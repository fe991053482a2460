"""Reading a Llama from a GGUF file: de-quantised weights, configuration and tokenizer.

The `gguf` package parses and de-quantises; what is ours is the mapping back to Hugging Face
names and layouts.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from torch import Tensor

from journeyman.types import UserError

OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFModel:
    """One opened GGUF file. Raises UserError when it is not a Llama that can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise UserError(f"{path} is not a readable GGUF file: {error}") from error
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise UserError(f"{path} holds the architecture {architecture!r}, not llama")

    def field(self, key: str, default: Any = None) -> Any:
        """The metadata value of `key`, or `default`."""
        found = self._reader.get_field(key)
        return default if found is None else found.contents()

    @property
    def num_tensors(self) -> int:
        """How many tensors `tensors()` yields."""
        return len(self._reader.tensors)

    def quantisation(self) -> dict[str, int]:
        """How many tensors are stored in which type, as {"Q4_1": 210, …}."""
        counts: dict[str, int] = {}
        for tensor in self._reader.tensors:
            counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
        return counts

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face name and bf16 tensor, one after another (the file is memory-mapped)."""
        heads = self.field("llama.attention.head_count")
        kv_heads = self.field("llama.attention.head_count_kv", heads)
        for stored in self._reader.tensors:
            name = self._hugging_face_name(stored.name)
            values = dequantize(stored.data, stored.tensor_type)
            if ".q_proj." in name:
                values = _unpermute(values, heads)
            elif ".k_proj." in name:
                values = _unpermute(values, kv_heads)
            # A copy: the array may be a read-only view of the file.
            yield name, torch.from_numpy(np.array(values, dtype=np.float32)).to(torch.bfloat16)

    def _hugging_face_name(self, name: str) -> str:
        if name in OUTSIDE_LAYERS:
            return OUTSIDE_LAYERS[name]
        parts = name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[2] in IN_LAYER:
            return f"model.layers.{parts[1]}.{IN_LAYER[parts[2]]}.{parts[3]}"
        raise UserError(f"{self.path} holds a tensor that a Llama does not have: {name}")

    def config(self) -> dict[str, Any]:
        """A `config.json` for Transformers, vLLM and this project."""
        heads = self.field("llama.attention.head_count")
        tied = all(tensor.name != "output.weight" for tensor in self._reader.tensors)
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.field("llama.vocab_size"),
            "hidden_size": self.field("llama.embedding_length"),
            "intermediate_size": self.field("llama.feed_forward_length"),
            "num_hidden_layers": self.field("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.field("llama.attention.head_count_kv", heads),
            "hidden_act": "silu",
            "max_position_embeddings": self.field("llama.context_length"),
            "rms_norm_eps": _shortest(self.field("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self.field("llama.rope.freq_base", 10_000.0)),
            "rope_scaling": None,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": tied,
            "torch_dtype": "bfloat16",
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id"),
        }


def _unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """GGUF interleaves the two rotary halves of each query and key head (it rotates neighbouring
    pairs); Hugging Face keeps them apart. The inverse of llama.cpp's `permute`."""
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(values.shape)


def _shortest(stored: float) -> float:
    """The decimal that a float32 was written from: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(stored)))
