"""Compiling the kernels: at set-up (see `build.py`), else on first use. One shared library
per instruction set, named by what went into it, put in place whole."""

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from journeyman.config import home_dir
from journeyman.model.kernels.instructions import InstructionSet, cpu_flags
from journeyman.types import UserError

SOURCES = Path(__file__).parent / "native"
COMPILER_VARIABLE = "CXX"
FLAGS = (
    "-std=c++17",
    "-O3",
    # A product and a sum are fused only where the source says so: else two inlinings of the same
    # function could round differently.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-pthread",
    "-Wall",
    "-Wextra",
    # Vectors wider than the instruction set never cross a library's border.
    "-Wno-psabi",
    # GCC 12's own AVX-512 header: PR 105593.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
)
log = logging.getLogger(__name__)


def build(isa: InstructionSet, sources: Path = SOURCES) -> Path:
    """The compiled library of `isa`, compiling it (some seconds) if it is not there yet.

    `sources` may be another package's directory, whose files include the kernels' headers.
    Safe against other processes doing the same. Raises UserError without a C++ compiler, or
    when it refuses the sources.
    """
    target = _target(isa, sources)
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.parent / "lock"):
            if not target.exists():
                _compile(isa, sources, target)
    except OSError as error:
        raise UserError(
            f"cannot write {target}: {error}", "free disk space, or set JOURNEYMAN_HOME elsewhere"
        ) from error
    return target


def _target(isa: InstructionSet, sources: Path) -> Path:
    parts = [*FLAGS, *isa.compiler_flags, _version(_compiler()), *sorted(cpu_flags())]
    total = hashlib.sha256("\0".join(parts).encode())
    for path in sorted({*SOURCES.iterdir(), *sources.iterdir()}):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return (
        home_dir() / "build" / f"{sources.parent.name}-{total.hexdigest()[:16]}" / f"{isa.name}.so"
    )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiler() -> str:
    name = os.environ.get(COMPILER_VARIABLE) or "g++"
    found = shutil.which(name)
    if found is None:
        raise UserError(
            f"the native kernels need a C++ compiler and {name!r} is not on the PATH",
            "apt-get install g++ (or set CXX), or choose the torch backend",
        )
    return found


@cache
def _version(path: str) -> str:
    command = [path, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _compile(isa: InstructionSet, sources: Path, target: Path) -> None:
    started = time.monotonic()
    files = sorted(str(path) for path in sources.glob("*.cpp"))
    with TemporaryDirectory(prefix=".compile-", dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        flags = (*FLAGS, *isa.compiler_flags, f"-I{SOURCES}")
        command = [_compiler(), *flags, "-o", str(output), *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UserError(
                f"the {isa.name} kernels do not compile:\n{done.stderr.strip()}",
                "g++ 12 or newer is needed; or choose the torch backend",
            )
        output.replace(target)
    log.info("compiled the %s kernels in %.1f s", isa.name, time.monotonic() - started)
