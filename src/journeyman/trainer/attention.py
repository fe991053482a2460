"""Attention in a trie of token streams, as an `attend` for `journeyman.model.Llama`.

Axes: T nodes, Hq query heads, Hkv KV heads, Dh head width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from journeyman.model import Attend
from journeyman.trainer.trie import Segment


def trie_attend(segments: Sequence[Segment]) -> Attend:
    """Each segment attends to the segments above it and, causally, to itself.

    The plain form, for any type, under autograd.
    """

    def attend(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = []
        for index, segment in enumerate(segments):
            rows = [*segment.context, index]
            spans = [slice(segments[row].start, segments[row].end) for row in rows]
            keys = torch.cat([key[span] for span in spans]).transpose(0, 1)
            values = torch.cat([value[span] for span in spans]).transpose(0, 1)
            length, total = segment.end - segment.start, keys.shape[1]
            visible = torch.ones(length, total, dtype=torch.bool).tril(total - length)
            mixed.append(
                functional.scaled_dot_product_attention(
                    query[spans[-1]].transpose(0, 1),
                    keys,
                    values,
                    attn_mask=visible,
                    enable_gqa=query.shape[1] != key.shape[1],
                ).transpose(0, 1)
            )
        return torch.cat(mixed)

    return attend
