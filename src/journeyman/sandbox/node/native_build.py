"""Compiling small C programs of this package, each kept under the digest of its source."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.types.failure import UserError

STATIC = ("-static",)
PRELOADED = ("-shared", "-fPIC")
_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-D_GNU_SOURCE")


def compile_c(name: str, source: Path, kind: Sequence[str], compilers: Sequence[str]) -> Path:
    """The compiled `source`, built unless it is there. `compilers` in order of preference.
    Raises UserError where none is installed."""
    digest = hashlib.sha256(repr((kind, _FLAGS)).encode() + source.read_bytes()).hexdigest()
    target = home_dir() / "build" / f"{name}-{digest[:16]}"
    if target.exists():
        return target
    compiler = next((found for found in compilers if shutil.which(found)), None)
    if compiler is None:
        raise UserError(f"{source.name} cannot be built: there is no C compiler", "Run: make setup")
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f"{name}-building-")
    os.close(descriptor)
    result = subprocess.run(
        [compiler, *kind, *_FLAGS, str(source), "-o", temporary],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        os.unlink(temporary)
        raise UserError(
            f"{source.name} does not compile with {compiler}:\n{result.stderr}",
            "Run as root: apt-get install -y musl-tools g++",
        )
    os.chmod(temporary, 0o755)
    os.rename(temporary, target)
    return target
