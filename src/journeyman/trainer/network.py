"""`journeyman.model.Llama` with its layers' inner operations exchanged for the trainer's.

The model's structure (what feeds what) stays that of `Llama.forward`; only the modules that hold
weights are replaced, by ones that compute the same from the flat `Parameters`.
"""

import torch
from torch import Tensor, nn

from journeyman.model import Attend, Llama, ModelConfig
from journeyman.trainer.operations import gate, linear, norm, rotate
from journeyman.trainer.parameters import Parameters, Weight


class Embedding(nn.Module):
    """Rows of the embedding; their gradients are added row by row."""

    def __init__(self, weight: Weight) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        rows = self.weight.value[token_ids].requires_grad_(torch.is_grad_enabled())
        if rows.requires_grad:
            gradient = self.weight.gradient
            rows.register_hook(  # type: ignore[no-untyped-call]
                lambda got: _add_rows(gradient, token_ids, got)
            )
        return rows


def _add_rows(gradient: Tensor, token_ids: Tensor, upstream: Tensor) -> None:
    gradient.index_add_(0, token_ids, upstream.to(gradient.dtype))


class RMSNorm(nn.Module):
    def __init__(self, weight: Weight, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        return norm(hidden, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(
        self, parameters: Parameters, prefix: str, config: ModelConfig, layer: int
    ) -> None:
        super().__init__()
        self.layer = layer
        self.config = config
        self.inputs = parameters.weight(
            *(f"{prefix}.{part}_proj.weight" for part in ("q", "k", "v"))
        )
        self.output = parameters.weight(f"{prefix}.o_proj.weight")

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        """[T, D] -> [T, D]"""
        queries, keys = self.config.num_heads, self.config.num_kv_heads
        heads = linear(hidden, self.inputs).view(len(hidden), -1, self.config.head_dim)
        heads = rotate(heads, cosine, sine, queries + keys)
        mixed = attend(self.layer, *torch.split(heads, [queries, keys, keys], dim=1))
        return linear(mixed.reshape(len(hidden), -1), self.output)


class GatedMLP(nn.Module):
    def __init__(self, parameters: Parameters, prefix: str) -> None:
        super().__init__()
        self.inputs = parameters.weight(
            *(f"{prefix}.{part}_proj.weight" for part in ("gate", "up"))
        )
        self.output = parameters.weight(f"{prefix}.down_proj.weight")

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        return linear(gate(linear(hidden, self.inputs)), self.output)


def training_network(config: ModelConfig, parameters: Parameters) -> Llama:
    """A Llama that computes from `parameters` and adds its gradients to them."""
    with torch.device("meta"):
        network = Llama(config)
    decoder = network.model
    decoder.add_module("embed_tokens", Embedding(parameters.weight("model.embed_tokens.weight")))
    for index, layer in enumerate(decoder.layers):
        prefix = f"model.layers.{index}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            weight = parameters.weight(f"{prefix}.{name}.weight")
            layer.add_module(name, RMSNorm(weight, config.norm_eps))
        layer.add_module("self_attn", Attention(parameters, f"{prefix}.self_attn", config, index))
        layer.add_module("mlp", GatedMLP(parameters, f"{prefix}.mlp"))
    decoder.add_module("norm", RMSNorm(parameters.weight("model.norm.weight"), config.norm_eps))
    return network


def head_weight(config: ModelConfig, parameters: Parameters) -> Weight:
    """[V, D], the embedding's where they are tied."""
    tied = config.tied_embeddings
    return parameters.weight("model.embed_tokens.weight" if tied else "lm_head.weight")
