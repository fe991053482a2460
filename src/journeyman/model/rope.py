"""Rotary position embeddings (Su et al., 2021; arXiv 2104.09864), in the half-split layout.

Axes: T tokens, H heads, Dh head width.
"""

import math

import torch
from torch import Tensor

from journeyman.model.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angles per position, float32 [Dh / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, frequencies)
    return frequencies


def _llama3_frequencies(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended
    (Llama 3.1, as in Transformers' `_compute_llama3_parameters`)."""
    longest = rope.original_context / rope.low_freq_factor
    shortest = rope.original_context / rope.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > longest, frequencies / rope.factor, frequencies)
    blend = (rope.original_context / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * stretched / rope.factor + blend * stretched
    between = (wavelengths <= longest) & (wavelengths >= shortest)
    return torch.where(between, blended, stretched)


def rotation(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each token's angles, both [T, Dh], computed in float32."""
    angles = torch.outer(positions.float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `heads` [T, H, Dh] by `rotation(...)`."""
    half = heads.shape[-1] // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return heads * cosine[:, None, :] + turned * sine[:, None, :]
