"""Set-up of this machine for sandboxes: Debian packages, guest agent, root file system, and for
virtual machines a kernel, a disk image and their first start.

    python -m journeyman.sandbox.node.setup [--driver gvisor|qemu|bubblewrap]

Idempotent; a fraction of a second when all is there.
"""

import argparse
import asyncio
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from journeyman.sandbox.node import apt_sources
from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.probe import choose_driver
from journeyman.sandbox.node.qemu_command import OLDEST_QEMU, qemu_version
from journeyman.sandbox.node.qemu_kernel import fetch_kernel
from journeyman.sandbox.node.rootfs import build_rootfs, install_agent
from journeyman.types.failure import JourneymanError, UserError

PROGRAMS = {
    "runsc": "runsc",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mkfs.ext4": "e2fsprogs",
    "bwrap": "bubblewrap",
    "mmdebstrap": "mmdebstrap",
    "musl-gcc": "musl-tools",
    "g++": "g++",
    "rg": "ripgrep",
    "busybox": "busybox-static",
}
"""Program → Debian package that brings it. ripgrep is for tests of `grep` outside a sandbox,
busybox for images that hold nothing else."""
_OF_QEMU = frozenset({"qemu-system-x86_64", "qemu-img", "mkfs.ext4"})
_OF_GVISOR = frozenset({"runsc"})
_FROM_BACKPORTS = frozenset({"runsc", "qemu-system-x86", "qemu-utils"})
_BACKPORTS_FILE = Path("/etc/apt/sources.list.d/journeyman-backports.list")

Progress = Callable[[str], None]


def setup(progress: Progress = print, driver: str = "gvisor") -> None:
    """Raises UserError naming what is missing and the line that brings it.

    `gvisor`, the default, also prepares QEMU where that can run: 43 MB to fetch, 450 MB on disk.
    With `driver="bubblewrap"` neither is asked for: a Debian without them can still develop.
    """
    began = time.monotonic()
    _install_packages(progress, driver)
    progress("guest agent")
    agent = build_agent()
    rootfs = build_rootfs(progress)
    install_agent(rootfs, agent)
    if _wants_qemu(driver):
        fetch_kernel(progress)
        progress("first start of a virtual machine")
        asyncio.run(choose_driver("qemu"))
    progress(f"sandboxes are set up ({time.monotonic() - began:.1f} s): {rootfs}")


def _wants_qemu(driver: str) -> bool:
    return driver == "qemu" or (driver == "gvisor" and platform.machine() == "x86_64")


def _is_missing(program: str) -> bool:
    """Not there, or a QEMU too old for the driver."""
    if shutil.which(program) is None:
        return True
    return program == "qemu-system-x86_64" and qemu_version() < OLDEST_QEMU


def _install_packages(progress: Progress, driver: str) -> None:
    unneeded = _OF_GVISOR if driver != "gvisor" else frozenset[str]()
    if not _wants_qemu(driver):
        unneeded |= _OF_QEMU
    missing = [
        package
        for program, package in PROGRAMS.items()
        if program not in unneeded and _is_missing(program)
    ]
    if not missing:
        return
    if os.geteuid() != 0:
        raise UserError(
            f"these Debian packages are missing: {' '.join(missing)}",
            f"Run as root: make setup{'' if driver == 'gvisor' else f' DRIVER={driver}'}",
        )
    codename = apt_sources.codename()
    backports = None
    if _FROM_BACKPORTS & set(missing):
        backports = apt_sources.backports_source(codename, apt_sources.read_sources())
    if backports is not None:
        progress(f"adding {backports.suites[0]} from this machine's own mirror")
        _BACKPORTS_FILE.write_text("\n".join(backports.lines()) + "\n", encoding="utf-8")
    progress(f"installing {', '.join(missing)}")
    _apt("update")
    install = ("install", "-y", "--no-install-recommends")
    if plain := [package for package in missing if package not in _FROM_BACKPORTS]:
        _apt(*install, *plain)
    if newer := [package for package in missing if package in _FROM_BACKPORTS]:
        # By target release: what these depend on may have to be as new.
        _apt(*install, "--target-release", f"{codename}-backports", *newer)


def _apt(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    result = subprocess.run(
        ["apt-get", "-qq", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        raise UserError(
            f"'apt-get {' '.join(arguments)}' failed:\n{result.stdout.strip()[-2000:]}",
            "Mend the package sources below /etc/apt, then run the set-up again.",
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="journeyman.sandbox.node.setup", description=__doc__)
    parser.add_argument("--driver", choices=("gvisor", "qemu", "bubblewrap"), default="gvisor")
    driver = parser.parse_args().driver
    try:
        setup(lambda line: print(f"  {line}", flush=True), driver)
    except JourneymanError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
