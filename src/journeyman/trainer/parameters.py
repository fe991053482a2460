"""The weights of a run: FP32 masters, their compute copies, and FP32 gradients.

Each kind is one flat buffer, and every parameter a view into it: casting, clipping and the
optimiser are single passes over memory, and projections that share their input lie side by side,
so that they multiply as one matrix.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from journeyman.model import Llama, ModelConfig


@dataclass(frozen=True)
class Weight:
    """One parameter (or several side by side) as forward and backward passes see it.

    Gradients are added to `gradient` by the backward pass itself rather than by autograd, because
    autograd would keep them in the type of `value`, and sums over packs must be FP32.
    """

    name: str
    value: Tensor
    """Compute type (bf16)."""
    gradient: Tensor
    """Master type (FP32), same shape."""

    def add_outer(self, upstream: Tensor, inputs: Tensor) -> None:
        """Add the gradient of `inputs @ value.T`: upstream [T, out], inputs [T, in]."""
        self.gradient.add_(upstream.T @ inputs)


class Parameters:
    """Flat buffers of all parameters, matrices first and vectors (norms) last."""

    def __init__(
        self,
        config: ModelConfig,
        state: Mapping[str, Tensor],
        master: torch.dtype = torch.float32,
        compute: torch.dtype = torch.bfloat16,
    ) -> None:
        with torch.device("meta"):
            shapes = {name: tensor.shape for name, tensor in Llama(config).state_dict().items()}
        order = [name for name in shapes if len(shapes[name]) > 1]
        self.num_matrix_elements = sum(shapes[name].numel() for name in order)
        order += [name for name in shapes if len(shapes[name]) == 1]
        self._spans: dict[str, tuple[int, torch.Size]] = {}
        total = 0
        for name in order:
            self._spans[name] = (total, shapes[name])
            total += shapes[name].numel()
        self.master = torch.empty(total, dtype=master)
        self.compute = torch.empty(total, dtype=compute)
        self.gradient = torch.zeros(total, dtype=master)
        self.assign(state)

    def assign(self, state: Mapping[str, Tensor]) -> None:
        """Take masters from `state` (Hugging Face names) and refresh the compute copies."""
        for name, view in self.named(self.master):
            view.copy_(state[name])
        self.refresh()

    def refresh(self) -> None:
        """The one cast of a step: compute copies follow the masters."""
        self.compute.copy_(self.master)

    def named(self, buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Views into `buffer` (one of the flat buffers, or one like them) by parameter."""
        for name, (start, shape) in self._spans.items():
            yield name, buffer[start : start + shape.numel()].view(shape)

    def weight(self, *names: str) -> Weight:
        """The parameter, or several with equal input width stacked along the output axis.

        Raises ValueError when they do not lie side by side.
        """
        start, shape = self._spans[names[0]]
        end = start
        for name in names:
            offset, part = self._spans[name]
            if offset != end or part[1:] != shape[1:]:
                raise ValueError(f"{name} does not follow its neighbour: {names}")
            end += part.numel()
        views = (buffer[start:end].view(-1, *shape[1:]) for buffer in (self.compute, self.gradient))
        return Weight(names[0], *views)
