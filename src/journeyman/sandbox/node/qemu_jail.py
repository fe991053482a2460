"""The jail of a QEMU process: what is left to an adversary who takes it over.

A user id of its own with no capability, an own mount, network, process, IPC and host name
namespace, a root directory that holds the engine's libraries, its machine's files and a few
devices, and QEMU's own filter of system calls. bubblewrap builds it; root starts it.
"""

import hashlib
import os
from pathlib import Path

_FIRST_UID = 0x6000_0000
MACHINE = "/machine"
KERNEL = "/kernel"
IMAGE = "/image"
RAM = "/ram/ram"
"""What QEMU takes for its guest's memory. Nothing is ever written there."""
_LAYERS = "/lib-layers.so"

_ENGINE = (
    "/usr/bin/qemu-system-x86_64",
    "/usr/bin/setpriv",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/qemu",
    "/usr/share/seabios",
    "/etc/ld.so.cache",
)
"""Read-only, as far as they exist."""

_PARENTS = ("/usr", "/usr/bin", "/usr/share", "/etc", "/dev")

SECCOMP = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


def jail_uid(sandbox_id: str) -> int:
    """A user id that no account and, but for one in 2^28, no other sandbox has."""
    digest = hashlib.sha256(sandbox_id.encode()).digest()
    return _FIRST_UID + (int.from_bytes(digest[:4], "little") >> 4)


def _libraries() -> list[str]:
    """/lib and /lib64, which are links on a system with one /usr."""
    arguments: list[str] = []
    for path in ("/lib", "/lib64"):
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    return arguments


def jailed(
    argv: list[str], *, uid: int, machine: Path, image: Path, layers: Path, kernel: Path | None
) -> list[str]:
    """The command line that runs `argv` in a jail. Inside, `machine` is /machine, of which only
    /machine/disk can be written; `image` is /image, and `kernel` a directory for the first start.
    """
    binds: list[str] = []
    for path in _PARENTS:  # bubblewrap would make them for root only
        binds += ["--perms", "0755", "--dir", path]
    for path in _ENGINE:
        binds += ["--ro-bind-try", path, path]
    for source, target in ((machine, MACHINE), (image, IMAGE), (layers, _LAYERS)):
        binds += ["--ro-bind", str(source), target]
    binds += ["--bind", str(machine / "disk"), f"{MACHINE}/disk"]
    if kernel is not None:
        binds += ["--ro-bind", str(kernel), KERNEL]
    capabilities = [
        word for name in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{name}")
    ]
    return [
        *("bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", *capabilities),
        *("--clearenv", "--setenv", "LD_PRELOAD", _LAYERS),
        *("--setenv", "JOURNEYMAN_MEMORY", f"{MACHINE}/memory", "--setenv", "JOURNEYMAN_RAM", RAM),
        *binds,
        *_libraries(),
        *("--perms", "1777", "--size", "65536", "--tmpfs", os.path.dirname(RAM)),
        *("--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom"),
        *("--chdir", "/", "--"),
        *("/usr/bin/setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--"),
        *argv,
    ]
