"""Which instruction sets the kernels are built for, and which of them this machine has."""

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from journeyman.types import UserError

ISA_VARIABLE = "JOURNEYMAN_ISA"
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class InstructionSet:
    """One build of the kernels. Results are the same bits on every run of one instruction set;
    between two of them they differ by rounding."""

    name: str
    needs: frozenset[str]
    """Flags as Linux spells them; Linux lists a flag only if it also saves the registers."""
    compiler_flags: tuple[str, ...]
    """For x86-64; elsewhere only the portable build exists, with the compiler's default."""


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx2", "fma"})
_BF16 = _AVX512 | {"avx512_bf16"}

INSTRUCTION_SETS = (
    InstructionSet(
        "amx_bf16",
        _BF16 | {"amx_tile", "amx_bf16"},
        ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
    ),
    InstructionSet("avx512_bf16", _BF16, ("-march=x86-64-v4", "-mavx512bf16")),
    InstructionSet("avx512f", _AVX512, ("-march=x86-64-v4",)),
    InstructionSet("avx2", frozenset({"avx2", "fma", "bmi2", "f16c"}), ("-march=x86-64-v3",)),
    InstructionSet("portable", frozenset(), ()),
)
"""Best first."""


@cache
def cpu_flags() -> frozenset[str]:
    """What this machine's processor can do; empty where that is not known."""
    if platform.machine() not in ("x86_64", "AMD64") or not CPU_INFO.exists():
        return frozenset()
    for line in CPU_INFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def available() -> tuple[InstructionSet, ...]:
    """Those this machine can run, best first; `portable` is always last."""
    return tuple(isa for isa in INSTRUCTION_SETS if isa.needs <= cpu_flags())


def choose(name: str | None = None) -> InstructionSet:
    """The named one, else the one `$JOURNEYMAN_ISA` names, else the best this machine has.

    Raises UserError for an unknown name or one that this processor lacks.
    """
    wanted = name or os.environ.get(ISA_VARIABLE)
    if not wanted:
        return available()[0]
    known = {isa.name: isa for isa in INSTRUCTION_SETS}
    if wanted not in known:
        raise UserError(f"no instruction set is called {wanted!r}", f"known: {', '.join(known)}")
    missing = known[wanted].needs - cpu_flags()
    if missing:
        raise UserError(
            f"this processor has no {wanted} (it lacks {', '.join(sorted(missing))})",
            f"available here: {', '.join(isa.name for isa in available())}",
        )
    return known[wanted]
