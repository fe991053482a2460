"""Attention over whole sequences in plain torch: the reference others are compared with.

Axes: T tokens, Hq query heads, Hkv KV heads, Dh head width.
"""

import itertools

import torch
from torch import Tensor
from torch.nn import functional

from journeyman.model.llama import Attend


def causal_attend(query_starts: list[int]) -> Attend:
    """An `attend` for sequences that are complete in the flat layout, sequence s owning rows
    query_starts[s] to query_starts[s + 1]. Works under autograd."""
    spans = list(itertools.pairwise(query_starts))

    def attend(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = [
            functional.scaled_dot_product_attention(
                query[start:end].transpose(0, 1),
                key[start:end].transpose(0, 1),
                value[start:end].transpose(0, 1),
                is_causal=True,
                enable_gqa=query.shape[1] != key.shape[1],
            ).transpose(0, 1)
            for start, end in spans
        ]
        return torch.cat(mixed)

    return attend
