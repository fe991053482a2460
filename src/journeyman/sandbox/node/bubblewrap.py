"""bubblewrap: namespaces only, for development. The guest speaks to the host's own kernel.

The guest's files are an overlay whose upper layer is in the sandbox's directory. It is mounted in
a mount namespace of the sandbox's own, so a dead sandbox leaves no mount. Memory cannot be
snapshotted: a fork is a new start on a copy of the files.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from journeyman.sandbox.node.cgroups import ControlGroups
from journeyman.sandbox.node.driver import Machine, MachineSpec, agent_arguments
from journeyman.sandbox.node.link import open_link
from journeyman.sandbox.node.process import kill_pidfd, run, spawn_with_pipes
from journeyman.types.failure import UserError

_MOUNT_AND_RUN = (
    'mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/merged" '
    '&& shift 2 && exec "$@"'
)


class BubblewrapDriver:
    """Works without root where user namespaces are allowed."""

    name = "bubblewrap"
    isolation = "bubblewrap: namespaces only, the guest shares the host's kernel; for development"
    snapshots_memory = False

    def __init__(self) -> None:
        self._groups = ControlGroups()
        self._groups.sweep()
        self.enforced = self._groups.enforced
        self.fingerprint = "files"

    async def probe(self) -> None:
        for program, package in (("bwrap", "bubblewrap"), ("unshare", "util-linux")):
            if shutil.which(program) is None:
                raise UserError(
                    f"the bubblewrap driver needs {program!r}",
                    f"Run as root: apt-get install -y {package}",
                )

    async def boot(self, spec: MachineSpec) -> Machine:
        files = spec.directory / "files"
        for name in ("upper", "work", "merged"):
            (files / name).mkdir(parents=True, exist_ok=True)
        limits = spec.limits
        groups = self._groups.create(
            spec.id,
            memory_bytes=limits.memory_bytes,
            processes=limits.processes,
            cpus=limits.cpus,
        )
        user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
        argv = (
            *("unshare", *user, "--mount", "--propagation", "private"),
            *("sh", "-c", _MOUNT_AND_RUN, "sh", str(spec.rootfs), str(files)),
            *("bwrap", "--unshare-all", "--die-with-parent", "--as-pid-1", "--clearenv"),
            *("--hostname", "sandbox", "--bind", str(files / "merged"), "/"),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", str(limits.tmp_bytes), "--tmpfs", "/tmp", "--chdir", "/"),
            *("--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            *agent_arguments(spec),
        )
        process, pipes = await spawn_with_pipes(
            argv, groups=groups, log=spec.directory / "engine.log"
        )
        pidfd = os.pidfd_open(process.pid)
        link = await open_link(spec.id, pipes.from_guest, pipes.to_guest)
        return Machine(spec.id, link, process.pid, pidfd)

    async def snapshot(self, machine: Machine, spec: MachineSpec, into: Path) -> None:
        await _copy(spec.directory / "files" / "upper", into / "upper")

    async def restore(self, spec: MachineSpec, snapshot: Path, first_number: int) -> Machine:
        (spec.directory / "files").mkdir()
        await _copy(snapshot / "upper", spec.directory / "files" / "upper")
        return await self.boot(spec)

    def kill(self, machine: Machine) -> None:
        machine.link.close()
        if machine.pidfd >= 0:
            kill_pidfd(machine.pidfd)
            os.close(machine.pidfd)
            machine.pidfd = -1

    def exhausted(self, spec: MachineSpec) -> list[str]:
        return self._groups.exhausted(spec.id, crowd=spec.limits.processes)

    async def collect(self, specs: Sequence[MachineSpec]) -> None:
        for spec in specs:
            self._groups.kill(spec.id)
        for spec in specs:
            await self._groups.remove(spec.id)
            await asyncio.to_thread(_forget_work, spec.directory / "files")


async def _copy(source: Path, target: Path) -> None:
    await run(("cp", "-a", "--reflink=auto", str(source), str(target)), timeout_s=300)


def _forget_work(files: Path) -> None:
    """overlayfs leaves a directory without permissions in its work directory."""
    inner = files / "work" / "work"
    if inner.exists():
        inner.chmod(0o700)
