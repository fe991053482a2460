"""One linear layer on the kernels, by itself.

Axes: M rows, K inputs, N outputs.
"""

import weakref

import torch
from torch import Tensor
from torch.nn import functional

from journeyman.model.kernels.instructions import choose
from journeyman.model.kernels.library import INPUT_MULTIPLE, LANES, Message, dense, library
from journeyman.model.kernels.threads import thread_count
from journeyman.types import UserError


class PackedMatrix:
    """bf16 weights [N, K], packed once; products accumulate in float32.

    A row of the result has the same bits alone and among any other rows, and with any number
    of threads.
    """

    def __init__(self, weight: Tensor, *, isa: str | None = None, threads: int | None = None):
        """Raises UserError unless `weight` is a bf16 matrix with an output and an input."""
        if weight.dtype != torch.bfloat16 or weight.dim() != 2 or 0 in weight.shape:
            raise UserError(
                f"a packed matrix is made of bf16 [N, K], not {weight.dtype} {list(weight.shape)}",
                "convert it with .bfloat16()",
            )
        self.outputs, self.inputs = weight.shape
        self._library = library(choose(isa))
        source, message = dense(weight, torch.bfloat16), Message()
        self._handle = self._library.journeyman_matrix(
            source.data_ptr(), self.outputs, self.inputs, thread_count(threads), message.buffer
        )
        if not self._handle:
            raise message.error("free memory, or choose another instruction set")
        weakref.finalize(self, self._library.journeyman_free_matrix, self._handle)

    def __call__(self, rows: Tensor) -> Tensor:
        """bf16 [M, K] to float32 [M, N]."""
        if rows.dtype != torch.bfloat16 or rows.dim() != 2 or rows.shape[1] != self.inputs:
            raise UserError(
                f"rows are {rows.dtype} {list(rows.shape)}, not bf16 [M, {self.inputs}]",
                "convert or reshape them",
            )
        padding = -self.inputs % INPUT_MULTIPLE
        source = dense(functional.pad(rows, (0, padding)), torch.bfloat16)
        result = torch.empty(len(rows), self.outputs + -self.outputs % LANES)
        self._library.journeyman_multiply(
            self._handle, source.data_ptr(), len(rows), result.data_ptr()
        )
        return result[:, : self.outputs]
