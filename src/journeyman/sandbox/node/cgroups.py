"""Memory, process and CPU limits by control groups, version 1 or 2, whichever is mounted."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PARENT = "journeyman"
_PERIOD_US = 100_000


def _own_v1_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.strip("/")
    return ""


def _parents() -> dict[str, Path]:
    """Controller → the directory our groups go below. Missing controllers are left out.

    Version 1 groups go below our own group, so that limits set on us hold for sandboxes too.
    """
    v2 = _ROOT / "cgroup.controllers"
    if v2.exists():
        names = set(v2.read_text(encoding="utf-8").split())
        return {name: _ROOT / _PARENT for name in ("memory", "pids", "cpu") if name in names}
    return {
        name: _ROOT / name / _own_v1_path(name) / _PARENT
        for name in ("memory", "pids", "cpu")
        if (_ROOT / name / "cgroup.procs").exists()
    }


def _settings(
    controller: str, v2: bool, memory_bytes: int, processes: int, cpus: float
) -> Mapping[str, str]:
    quota = str(int(cpus * _PERIOD_US))
    table = {
        ("memory", False): {"memory.limit_in_bytes": str(memory_bytes)},
        ("memory", True): {"memory.max": str(memory_bytes), "memory.swap.max": "0"},
        ("pids", False): {"pids.max": str(processes)},
        ("pids", True): {"pids.max": str(processes)},
        ("cpu", False): {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota},
        ("cpu", True): {"cpu.max": f"{quota} {_PERIOD_US}"},
    }
    return table[controller, v2]


def _count(path: Path, key: str) -> int:
    """Of a file with one `key number` a line; 0 where there is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8"))
    except OSError:
        return 0


class ControlGroups:
    """The groups of one node. `enforced` says which limits hold on this machine."""

    def __init__(self) -> None:
        self._v2 = (_ROOT / "cgroup.controllers").exists()
        self._oom_file = "memory.events" if self._v2 else "memory.oom_control"
        self._parents = {
            controller: parent
            for controller, parent in _parents().items()
            if self._prepare(parent, controller)
        }
        self.enforced = tuple(self._parents)

    def sweep(self, older_than_s: float = 300.0) -> None:
        """Remove empty groups that a killed service left. Young ones may be about to be joined."""
        for parent in dict.fromkeys(self._parents.values()):
            for directory in parent.iterdir():
                if directory.is_dir() and time.time() - directory.stat().st_mtime > older_than_s:
                    with suppress(OSError):  # in use
                        os.rmdir(directory)

    def _prepare(self, parent: Path, controller: str) -> bool:
        try:
            parent.mkdir(exist_ok=True)
            if self._v2:
                for directory in (parent.parent, parent):
                    control = directory / "cgroup.subtree_control"
                    control.write_text(f"+{controller}", encoding="utf-8")
        except OSError:
            return False  # not root, or not delegated: `enforced` says so
        return os.access(parent, os.W_OK)  # root may have left it behind

    def create(self, name: str, *, memory_bytes: int, processes: int, cpus: float) -> list[Path]:
        """The directories whose `cgroup.procs` a process must write itself to."""
        directories: list[Path] = []
        for controller, parent in self._parents.items():
            directory = parent / name
            directory.mkdir(exist_ok=True)
            settings = _settings(controller, self._v2, memory_bytes, processes, cpus)
            for key, value in settings.items():
                if (directory / key).exists():
                    (directory / key).write_text(value, encoding="utf-8")
            if directory not in directories:
                directories.append(directory)
        return directories

    def paths(self, name: str) -> list[Path]:
        return list(dict.fromkeys(parent / name for parent in self._parents.values()))

    def memory(self, name: str) -> Path | None:
        """The group that accounts memory, where there is one."""
        parent = self._parents.get("memory")
        return parent / name if parent else None

    def exhausted(self, name: str, crowd: int) -> list[str]:
        """Which limits the sandbox has run into, in words. `crowd` host threads or more are a
        sign of a guest full of processes."""
        found = []
        memory, pids = self._parents.get("memory"), self._parents.get("pids")
        if memory and _count(memory / name / self._oom_file, "oom_kill"):
            found.append("memory")
        if pids and (
            _count(pids / name / "pids.events", "max")
            or _number(pids / name / "pids.current") > crowd
        ):
            found.append("processes")
        return found

    def members(self, name: str) -> set[int]:
        """Ids of the processes in any of the sandbox's groups."""
        found: set[int] = set()
        for directory in self.paths(name):
            try:
                text = (directory / "cgroup.procs").read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            found.update(int(pid) for pid in text.split())
        return found

    def kill(self, name: str) -> None:
        """End every process of the sandbox that is left."""
        for pid in self.members(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def remove(self, name: str, patience_s: float = 10.0) -> None:
        """Remove the groups once the kernel has let go of their last process."""
        for directory in self.paths(name):
            for _ in range(int(patience_s / 0.05)):
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    await asyncio.sleep(0.05)
                else:
                    break
