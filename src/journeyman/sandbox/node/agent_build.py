"""Building the guest agent: a static binary, named by the digest of its source."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.types.failure import UserError

_SOURCE = Path(__file__).parent.parent / "guest"
_FLAGS = ("-static", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-result", "-D_GNU_SOURCE")


def source_digest() -> str:
    """Over names and contents of every C file and the compiler's flags."""
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for path in sorted(_SOURCE.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def agent_path() -> Path:
    """Where the agent of this source is, built or not."""
    return home_dir() / "build" / f"guest-{source_digest()}"


def build_agent() -> Path:
    """Build it unless it is there. Raises UserError when there is no C compiler."""
    target = agent_path()
    if target.exists():
        return target
    compiler = next((name for name in ("musl-gcc", "gcc", "cc") if shutil.which(name)), None)
    if compiler is None:
        raise UserError(
            "the sandbox's guest agent cannot be built: there is no C compiler",
            "Run: apt-get install -y musl-tools",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix="guest-building-")
    os.close(descriptor)
    sources = [str(path) for path in sorted(_SOURCE.glob("*.c"))]
    result = subprocess.run(
        [compiler, *_FLAGS, *sources, "-o", temporary], capture_output=True, text=True, check=False
    )
    if result.returncode:
        os.unlink(temporary)
        raise UserError(
            f"the sandbox's guest agent does not compile with {compiler}:\n{result.stderr}",
            "Run: apt-get install -y musl-tools",
        )
    os.chmod(temporary, 0o755)
    os.rename(temporary, target)
    return target
