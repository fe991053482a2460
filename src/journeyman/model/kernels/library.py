"""The C interface of the compiled kernels, as ctypes sees it. See native/model.h."""

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from journeyman.model.kernels.compiler import build
from journeyman.model.kernels.instructions import InstructionSet
from journeyman.types import EngineError

ERROR_BYTES = 512
LANES = 16
INPUT_MULTIPLE = 32

_Fields = list[tuple[str, Any]]


class Shape(ctypes.Structure):
    """struct JourneymanShape"""

    _fields_: ClassVar[_Fields] = [
        ("vocabulary", c_int64),
        ("width", c_int64),
        ("inner", c_int64),
        ("layers", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("positions", c_int64),
        ("epsilon", c_float),
        ("cosine", c_void_p),
        ("sine", c_void_p),
    ]


PER_LAYER = (
    "input_norm",
    "query",
    "key",
    "value",
    "output",
    "inner_norm",
    "gate",
    "up",
    "down",
)


class Weights(ctypes.Structure):
    """struct JourneymanWeights"""

    _fields_: ClassVar[_Fields] = [
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("head", c_void_p),
        *((name, POINTER(c_void_p)) for name in PER_LAYER),
    ]


class Batch(ctypes.Structure):
    """struct JourneymanBatch"""

    _fields_: ClassVar[_Fields] = [
        ("tokens", c_int64),
        ("sequences", c_int64),
        ("table_width", c_int64),
        ("sampled", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("query_starts", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("sample_rows", c_void_p),
        ("temperature", c_void_p),
        ("top_p", c_void_p),
        ("seeds", c_void_p),
        ("targets", c_void_p),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "journeyman_model": (c_void_p, [POINTER(Shape), c_int32, c_char_p]),
    "journeyman_free_model": (None, [c_void_p]),
    "journeyman_load": (c_int32, [c_void_p, POINTER(Weights), c_char_p]),
    "journeyman_allocate": (c_int32, [c_void_p, c_int64, c_char_p]),
    "journeyman_step": (c_int32, [c_void_p, POINTER(Batch), c_void_p, c_void_p, c_char_p]),
    "journeyman_matrix": (c_void_p, [c_void_p, c_int64, c_int64, c_int32, c_char_p]),
    "journeyman_free_matrix": (None, [c_void_p]),
    "journeyman_multiply": (None, [c_void_p, c_void_p, c_int64, c_void_p]),
    "journeyman_exponential": (None, [c_void_p, c_int64, c_void_p]),
}


@cache
def library(isa: InstructionSet) -> ctypes.CDLL:
    """The kernels for `isa`, compiled if need be. Calls release the interpreter lock."""
    loaded = ctypes.CDLL(str(build(isa)))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


class Message:
    """Room for one error text, and the error made of it."""

    def __init__(self) -> None:
        self.buffer = (c_char * ERROR_BYTES)()

    def error(self, cure: str) -> EngineError:
        """What the kernels wrote."""
        return EngineError(self.buffer.value.decode("utf-8", "replace"), cure)


def dense(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` on the CPU, contiguous, of that type; itself when it is so already."""
    return tensor.detach().to("cpu", dtype).contiguous()
