"""Finding the engine process of a sandbox, whatever its driver."""

import os
from pathlib import Path

from journeyman.sandbox.node.cgroups import ControlGroups

DRIVER = os.environ.get("JOURNEYMAN_TEST_DRIVER", "gvisor")
"""What the tests of this folder run on, where they do not name a driver."""
_NAMES = {"gvisor": b"runsc-sandbox", "qemu": b"qemu-system-x86_64"}


def engine_pid(sandbox_id: str, driver: str = DRIVER) -> int:
    """Of the process whose end is the sandbox's end."""
    for pid in ControlGroups().members(sandbox_id):
        program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        if program.endswith(_NAMES[driver]):
            return pid
    raise AssertionError(f"no process of {driver} runs for {sandbox_id}")


def left_of(sandbox_id: str, state: Path) -> list[str]:
    """What a sandbox has left on this machine: processes, control groups, files."""
    members = [str(pid) for pid in ControlGroups().members(sandbox_id)]
    groups = [str(path) for path in ControlGroups().paths(sandbox_id) if path.exists()]
    return members + groups + [str(path) for path in state.rglob(f"*{sandbox_id}*")]
