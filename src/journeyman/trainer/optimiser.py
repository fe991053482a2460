"""AdamW on the flat master weights, with gradient clipping and warm-up."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from journeyman.trainer.parameters import Parameters

NORM_PIECE = 1 << 16


@dataclass(frozen=True)
class OptimiserSettings:
    learning_rate: float
    weight_decay: float = 0.0
    """On matrices only; norms never decay."""
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    clip_norm: float = 1.0
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly to its value."""


class Optimiser:
    """torch's fused AdamW over two spans of the flat buffers: matrices and norms."""

    def __init__(self, parameters: Parameters, settings: OptimiserSettings) -> None:
        self.settings = settings
        self.num_steps = 0
        self.first_moments = torch.zeros_like(parameters.master)
        self.second_moments = torch.zeros_like(parameters.master)
        self._parameters = parameters
        border = parameters.num_matrix_elements
        self._spans = (slice(0, border), slice(border, None))
        matrices, norms = (self._span(span) for span in self._spans)
        self._adamw = torch.optim.AdamW(
            [
                {"params": [matrices], "weight_decay": settings.weight_decay},
                {"params": [norms], "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )

    def _span(self, span: slice) -> Tensor:
        values = self._parameters.master[span]
        values.grad = self._parameters.gradient[span]
        return values

    def reset(self) -> None:
        """Forget the moments and start the warm-up again, as at the start of a run."""
        self.num_steps = 0
        self.first_moments.zero_()
        self.second_moments.zero_()

    def gradient_norm(self) -> float:
        """Euclidean norm of the whole gradient, before clipping.

        Summed in pieces of one thread each, so that it does not depend on their number.
        """
        gradient = self._parameters.gradient
        even = len(gradient) // NORM_PIECE * NORM_PIECE
        norms = torch.linalg.vector_norm(gradient[:even].view(-1, NORM_PIECE), dim=1).tolist()
        rest = torch.linalg.vector_norm(gradient[even:].view(1, -1), dim=1).tolist()
        return math.hypot(*norms, *rest)

    def learning_rate(self, peak: float) -> float:
        """Of the next step."""
        if self.num_steps >= self.settings.warmup_steps:
            return peak
        return peak * (self.num_steps + 1) / (self.settings.warmup_steps + 1)

    def step(self, gradient_norm: float, peak: float) -> None:
        """Apply the gathered gradient, clipped to `clip_norm`. The gradient buffer is spent."""
        if gradient_norm > self.settings.clip_norm:
            self._parameters.gradient.mul_(self.settings.clip_norm / gradient_norm)
        for group, span in zip(self._adamw.param_groups, self._spans, strict=True):
            group["lr"] = self.learning_rate(peak)
            # Set each time: the moments stay views of buffers that are saved by parameter name.
            self._adamw.state[group["params"][0]] = {
                "step": torch.tensor(float(self.num_steps)),
                "exp_avg": self.first_moments[span],
                "exp_avg_sq": self.second_moments[span],
            }
        self._adamw.step()
        self.num_steps += 1
