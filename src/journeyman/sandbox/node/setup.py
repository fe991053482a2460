"""Set-up of this machine for sandboxes: Debian packages, guest agent, root file system.

    python -m journeyman.sandbox.node.setup [--driver bubblewrap]

Idempotent; a fraction of a second when all is there.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from journeyman.sandbox.node import apt_sources
from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.rootfs import build_rootfs, install_agent
from journeyman.types.failure import JourneymanError, UserError

PROGRAMS = {
    "runsc": "runsc",
    "bwrap": "bubblewrap",
    "mmdebstrap": "mmdebstrap",
    "musl-gcc": "musl-tools",
    "g++": "g++",
    "rg": "ripgrep",
    "busybox": "busybox-static",
}
"""Program → Debian package that brings it. ripgrep is for tests of `grep` outside a sandbox,
busybox for images that hold nothing else."""
_NOT_NEEDED_BY: dict[str, frozenset[str]] = {
    "gvisor": frozenset(),
    "bubblewrap": frozenset({"runsc"}),
}
_FROM_BACKPORTS = frozenset({"runsc"})
_BACKPORTS_FILE = Path("/etc/apt/sources.list.d/journeyman-backports.list")

Progress = Callable[[str], None]


def setup(progress: Progress = print, driver: str = "gvisor") -> None:
    """Raises UserError naming what is missing and the line that brings it.

    With `driver="bubblewrap"` gVisor is not asked for: a Debian without it can still develop.
    """
    began = time.monotonic()
    _install_packages(progress, driver)
    progress("guest agent")
    agent = build_agent()
    rootfs = build_rootfs(progress)
    install_agent(rootfs, agent)
    progress(f"sandboxes are set up ({time.monotonic() - began:.1f} s): {rootfs}")


def _install_packages(progress: Progress, driver: str) -> None:
    missing = [
        package
        for program, package in PROGRAMS.items()
        if program not in _NOT_NEEDED_BY[driver] and not shutil.which(program)
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
    targets = [
        f"{package}/{codename}-backports" if package in _FROM_BACKPORTS else package
        for package in missing
    ]
    _apt("install", "-y", "--no-install-recommends", *targets)


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
    parser.add_argument("--driver", choices=sorted(_NOT_NEEDED_BY), default="gvisor")
    driver = parser.parse_args().driver
    try:
        setup(lambda line: print(f"  {line}", flush=True), driver)
    except JourneymanError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
