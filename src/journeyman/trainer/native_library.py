"""The C interface of the compiled passes, as ctypes sees it. See native/training.h."""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from journeyman.model.kernels.compiler import build
from journeyman.model.kernels.instructions import InstructionSet
from journeyman.model.kernels.library import Shape, Weights

SOURCES = Path(__file__).parent / "native"

_Fields = list[tuple[str, Any]]


class NativePack(ctypes.Structure):
    """struct JourneymanPack"""

    _fields_: ClassVar[_Fields] = [
        *((name, c_int64) for name in ("nodes", "segments", "table_width", "blocks")),
        *(
            (name, c_void_p)
            for name in (
                "token_ids",
                "positions",
                "segment_starts",
                "descendants",
                "block_tables",
                "slot_starts",
                "slots",
            )
        ),
    ]


PER_LAYER = ("input_norm", "query_key_value", "output", "inner_norm", "gate_up", "down")


class NativeGradients(ctypes.Structure):
    """struct JourneymanGradients"""

    _fields_: ClassVar[_Fields] = [
        *((name, c_void_p) for name in ("embedding", "final_norm", "head")),
        *((name, POINTER(c_void_p)) for name in PER_LAYER),
    ]


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "journeyman_training": (c_void_p, [POINTER(Shape), c_int32, c_char_p]),
    "journeyman_free_training": (None, [c_void_p]),
    "journeyman_training_load": (c_int32, [c_void_p, POINTER(Weights), c_char_p]),
    "journeyman_forward": (c_int32, [c_void_p, POINTER(NativePack), c_char_p]),
    "journeyman_choose_rows": (c_int32, [c_void_p, c_void_p, c_int64, c_char_p]),
    "journeyman_score": (
        c_int32,
        [c_void_p, c_int64, c_int64, c_void_p, c_float, c_void_p, c_void_p, c_char_p],
    ),
    "journeyman_add_slopes": (c_int32, [c_void_p, c_void_p, c_void_p, c_char_p]),
    "journeyman_backward": (
        c_int32,
        [c_void_p, POINTER(NativePack), POINTER(NativeGradients), c_char_p],
    ),
}


@cache
def training_library(isa: InstructionSet) -> ctypes.CDLL:
    """The passes for `isa`, compiled if need be. Calls release the interpreter lock."""
    loaded = ctypes.CDLL(str(build(isa, SOURCES)))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded
