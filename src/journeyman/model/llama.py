"""The Llama family, one definition for training and serving.

Tokens are laid out flat, [T] without a batch axis; who attends to whom is the caller's
`attend`. Parameters bear their Hugging Face names, so a state dict is a checkpoint.

Axes: T tokens, D hidden width, V vocabulary, Hq query heads, Hkv KV heads, Dh head width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from journeyman.model.config import ModelConfig
from journeyman.model.rope import inverse_frequencies, rotate, rotation

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer, q [T, Hq, Dh], k [T, Hkv, Dh], v [T, Hkv, Dh]) -> [T, Hq, Dh], rotated already,
not yet scaled: the attention applies 1 / sqrt(Dh)."""


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich, 2019), computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(hidden.dtype)


class Attention(nn.Module):
    """Projections and rotation around the caller's `attend`."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        query_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        """[T, D] -> [T, D]"""
        heads = (hidden.shape[0], -1, self.head_dim)
        query = rotate(self.q_proj(hidden).view(heads), cosine, sine)
        key = rotate(self.k_proj(hidden).view(heads), cosine, sine)
        value = self.v_proj(hidden).view(heads)
        mixed = attend(self.layer, query, key, value)
        projected: Tensor = self.o_proj(mixed.reshape(hidden.shape[0], -1))
        return projected


class GatedMLP(nn.Module):
    """SiLU-gated feed-forward layer (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]"""
        gated = functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        projected: Tensor = self.down_proj(gated)
        return projected


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        """[T, D] -> [T, D]"""
        normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, cosine, sine, attend)
        mixed: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return mixed


class Decoder(nn.Module):
    """Embeddings, layers and the final norm: everything but the head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer) for layer in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Llama(nn.Module):
    """A causal language model. With tied embeddings there is no `lm_head.weight`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        if not config.tied_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def lm_head_weight(self) -> Tensor:
        """[V, D]: logits are `hidden @ lm_head_weight.T`."""
        if self.config.tied_embeddings:
            return self.model.embed_tokens.weight
        return self.lm_head.weight

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states after the final norm, [T, D], of `token_ids` [T] at `positions` [T]."""
        hidden = self.model.embed_tokens(token_ids)
        # Not a buffer: casting the module to bf16 must never cast the frequencies.
        frequencies = inverse_frequencies(self.config.rope, self.config.head_dim)
        cosine, sine = rotation(positions, frequencies.to(positions.device), hidden.dtype)
        for layer in self.model.layers:
            hidden = layer(hidden, cosine, sine, attend)
        normed: Tensor = self.model.norm(hidden)
        return normed
