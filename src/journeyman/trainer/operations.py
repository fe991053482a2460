"""The layers of a Llama with hand-written backward passes.

Same mathematics and roundings as `journeyman.model.llama`, less memory traffic: projections of one
input are one matrix, nothing is kept that the backward pass does not need, and weight gradients go
straight into FP32 buffers. `autograd.Function`s return no gradient for a `Weight`.

Axes: T tokens, D hidden width, F feed-forward width, Hq query heads, Hkv KV heads, Dh head width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from journeyman.trainer.parameters import Weight


class _Linear(Function):
    """inputs [T, in] @ weight.T -> [T, out]"""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Weight) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.weight = weight
        return inputs @ weight.value.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (inputs,) = ctx.saved_tensors
        ctx.weight.add_outer(upstream, inputs)
        return upstream @ ctx.weight.value, None


class _Norm(Function):
    """Root-mean-square norm, statistics in FP32 (at least)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Weight, eps: float) -> Tensor:
        wide = hidden.to(weight.gradient.dtype)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(hidden, scale)
        ctx.weight = weight
        return weight.value * (wide * scale).to(hidden.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        hidden, scale = ctx.saved_tensors
        normed = hidden * scale
        upstream_wide = upstream.to(normed.dtype)
        ctx.weight.gradient.add_((upstream_wide * normed).sum(0))
        inner = upstream_wide * ctx.weight.value
        inner -= normed * (inner * normed).mean(-1, keepdim=True)
        return (inner * scale).to(hidden.dtype), None, None


class _Rotate(Function):
    """Rotary positions on the first `num_rotated` heads of [T, Hq + 2 Hkv, Dh]; values pass."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cosine: Tensor, sine: Tensor, num_rotated: int) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.num_rotated = num_rotated
        return _rotated(heads, cosine, sine, num_rotated)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        cosine, sine = ctx.saved_tensors
        return _rotated(upstream, cosine, -sine, ctx.num_rotated), None, None, None


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor, num_rotated: int) -> Tensor:
    """The transpose of a rotation is the rotation by the opposite angle."""
    turning = heads[:, :num_rotated]
    half = heads.shape[-1] // 2
    result = heads.clone()
    rotated = result[:, :num_rotated]
    rotated *= cosine[:, None, :]
    rotated[..., :half] -= turning[..., half:] * sine[:, None, :half]
    rotated[..., half:] += turning[..., :half] * sine[:, None, half:]
    return result


class _Gate(Function):
    """silu(gate) * up of stacked [T, 2 F] -> [T, F]"""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor) -> Tensor:
        ctx.save_for_backward(stacked)
        opening, up = stacked.chunk(2, dim=-1)
        return functional.silu(opening) * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (stacked,) = ctx.saved_tensors
        opening, up = stacked.chunk(2, dim=-1)
        gradient = torch.empty_like(stacked)
        to_opening, to_up = gradient.chunk(2, dim=-1)
        torch.mul(upstream, functional.silu(opening), out=to_up)
        to_opening.copy_(torch.ops.aten.silu_backward(upstream * up, opening))
        return gradient


def linear(inputs: Tensor, weight: Weight) -> Tensor:
    """[T, in] -> [T, out]"""
    return _apply(_Linear, inputs, weight)


def norm(hidden: Tensor, weight: Weight, eps: float) -> Tensor:
    """[T, D] -> [T, D]"""
    return _apply(_Norm, hidden, weight, eps)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor, num_rotated: int) -> Tensor:
    """[T, Hq + 2 Hkv, Dh] -> the same, the first `num_rotated` heads rotated"""
    return _apply(_Rotate, heads, cosine, sine, num_rotated)


def gate(stacked: Tensor) -> Tensor:
    """[T, 2 F] -> [T, F]"""
    return _apply(_Gate, stacked)


def _apply(function: type[Function], *arguments: object) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result
