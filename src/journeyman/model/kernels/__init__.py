"""The native CPU backend: one call per engine step, in C++, with bits that do not depend on batch
composition, prefill chunking or the number of threads. See docs/kernels.md."""

from journeyman.model.kernels.backend import NativeBackend
from journeyman.model.kernels.instructions import INSTRUCTION_SETS, InstructionSet, choose
from journeyman.model.kernels.matrix import PackedMatrix

__all__ = [
    "INSTRUCTION_SETS",
    "InstructionSet",
    "NativeBackend",
    "PackedMatrix",
    "choose",
]
