"""gVisor: a kernel in user space between guest and host (`runsc`, systrap platform).

A fork is a restore of a checkpoint. The agent speaks over the container's stdio pipes: a process
started by `runsc exec` would make later restores fail. The guest's files are an overlay in the
sandbox's memory, so a checkpoint holds everything and a dead sandbox leaves nothing.
"""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from journeyman.sandbox.node.cgroups import ControlGroups
from journeyman.sandbox.node.driver import Limits, Machine, MachineSpec, agent_arguments
from journeyman.sandbox.node.link import open_link
from journeyman.sandbox.node.memory_watch import watch_memory
from journeyman.sandbox.node.process import kill_pidfd, run, spawn_with_pipes
from journeyman.sandbox.node.stillness import Stillness
from journeyman.types.failure import SandboxError, UserError

_START_TIMEOUT_S = 60.0
_SENTRY_BYTES = 256 << 20
"""What gVisor itself may need beside the guest's memory."""
_SENTRY_IDLE_BYTES = 40 << 20
_HOST_THREADS_PER_PROCESS = 16
_SPARE_HOST_THREADS = 512

_CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        *("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
        *("SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE"),
        "SYS_ADMIN",  # to set the host name after a fork; of gVisor's kernel, not the host's
    )
]


def container_config(spec: MachineSpec) -> dict[str, Any]:
    """The OCI runtime configuration. It must be the same at checkpoint and restore."""
    limits = spec.limits
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": agent_arguments(spec),
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": {
                kind: _CAPABILITIES for kind in ("bounding", "effective", "permitted")
            },
            "noNewPrivileges": True,
        },
        "root": {"path": str(spec.rootfs), "readonly": False},
        "hostname": "sandbox",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/tmp",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": [f"size={limits.tmp_bytes}", "mode=1777"],
            },
            # gVisor's own control groups, for the agent to bound the number of processes.
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup"},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]
        },
    }


class GvisorDriver:
    """Needs root and `runsc` from Debian's backports."""

    name = "gvisor"
    isolation = "gVisor: guests speak to a kernel in user space, never to the host's"
    snapshots_memory = True

    def __init__(self, runsc: str = "runsc") -> None:
        self._runsc = runsc
        self._groups = ControlGroups()
        self._groups.sweep()
        self.enforced = (*self._groups.enforced, "processes", "open_files", "tmp")
        self.fingerprint = ""

    def _command(self, spec: MachineSpec, *arguments: str) -> list[str]:
        return [
            self._runsc,
            f"--root={spec.directory / 'runsc'}",
            "--platform=systrap",
            "--network=none",
            "--overlay2=root:memory",
            "--host-uds=none",
            # Limits are ours (cgroups.py): runsc would spend longer on every controller there is.
            "--ignore-cgroups",
            *arguments,
        ]

    async def probe(self) -> None:
        """See whether the engine is here at all; `Node.probe` then starts a sandbox."""
        cure = "Run `make setup` as root, or ask for the weaker `--driver bubblewrap` by name."
        if os.geteuid() != 0:
            raise UserError("the gvisor driver needs root", cure)
        if shutil.which(self._runsc) is None:
            raise UserError(f"{self._runsc!r} is not installed", cure)
        version = await run((self._runsc, "--version"), timeout_s=30)
        self.fingerprint = f"{version.split()[2]} {_cpu_digest()}"

    def _write_config(self, spec: MachineSpec) -> None:
        (spec.directory / "runsc").mkdir(exist_ok=True)
        config = json.dumps(container_config(spec))
        (spec.directory / "config.json").write_text(config, encoding="utf-8")

    async def boot(self, spec: MachineSpec) -> Machine:
        self._write_config(spec)
        arguments = ("run", "--detach", "--bundle", str(spec.directory))
        return await self._start(spec, arguments, first_number=1)

    async def restore(self, spec: MachineSpec, snapshot: Path, first_number: int) -> Machine:
        self._write_config(spec)
        image = ("--image-path", str(snapshot))
        arguments = ("restore", "--detach", "--bundle", str(spec.directory), *image)
        machine = await self._start(spec, arguments, first_number)
        if spec.stands_still:
            machine.link.stand_still(Stillness(machine.pidfd))
        return machine

    async def _start(
        self, spec: MachineSpec, arguments: tuple[str, ...], first_number: int
    ) -> Machine:
        groups = self._create_groups(spec.id, spec.limits)
        pid_file = spec.directory / "pid"
        log = spec.directory / "engine.log"
        argv = self._command(spec, *arguments, "--pid-file", str(pid_file), spec.id)
        process, pipes = await spawn_with_pipes(argv, groups=groups, log=log)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                status = await process.wait()
            if status:
                raise SandboxError(f"gVisor did not start {spec.id}: {_last_words(log)}")
            pid = int(pid_file.read_text(encoding="utf-8"))
            pidfd = os.pidfd_open(pid)
        except BaseException as error:
            pipes.close()
            self._groups.kill(spec.id)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError | OSError):
                raise SandboxError(f"gVisor did not start {spec.id}: {error!r}") from None
            raise
        link = await open_link(spec.id, pipes.from_guest, pipes.to_guest, first_number)
        watch = watch_memory(
            self._groups.memory(spec.id), spec.limits.memory_bytes, _SENTRY_IDLE_BYTES, link
        )
        return Machine(spec.id, link, pid, pidfd, watch)

    def _create_groups(self, name: str, limits: Limits) -> list[Path]:
        return self._groups.create(
            name,
            memory_bytes=limits.memory_bytes + _SENTRY_BYTES,
            processes=limits.processes * _HOST_THREADS_PER_PROCESS + _SPARE_HOST_THREADS,
            cpus=limits.cpus,
        )

    async def snapshot(self, machine: Machine, spec: MachineSpec, into: Path) -> None:
        options = ("--compression=none", "--leave-running", "--image-path", str(into))
        await run(self._command(spec, "checkpoint", *options, spec.id), timeout_s=120)

    def kill(self, machine: Machine) -> None:
        machine.link.close()
        if machine.watch:
            machine.watch.close()
        if machine.pidfd >= 0:
            kill_pidfd(machine.pidfd)
            os.close(machine.pidfd)
            machine.pidfd = -1

    def exhausted(self, spec: MachineSpec) -> list[str]:
        return self._groups.exhausted(spec.id, crowd=2 * spec.limits.processes)

    async def collect(self, specs: Sequence[MachineSpec]) -> None:
        """`runsc delete` waits a second per sandbox for what is dead already; with no control
        groups, mounts or network of its own, its state is the directory the caller removes."""
        for spec in specs:
            self._groups.kill(spec.id)
        for spec in specs:
            await self._groups.remove(spec.id)
            await asyncio.to_thread(shutil.rmtree, spec.directory / "runsc", ignore_errors=True)


def _cpu_digest() -> str:
    """gVisor refuses a checkpoint made where the CPU had other features."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:12]


def _last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-2000:] or "no message"
