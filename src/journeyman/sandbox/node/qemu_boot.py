"""The one first start of each kind of machine: kernel, disk and agent, kept as a snapshot."""

import asyncio
import errno
import hashlib
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from journeyman.config.home import home_dir
from journeyman.sandbox.node.commands import Command, run_command
from journeyman.sandbox.node.driver import Machine, MachineSpec
from journeyman.sandbox.node.link import GuestIdentity, GuestLink
from journeyman.sandbox.node.snapshots import write_snapshot
from journeyman.sandbox.wire.frames import FrameKind

_BOOT_S = 120.0
_KEPT_S = 14 * 24 * 3600
_WARMING = (
    ("sh", "-c", "true"),
    ("bash", "-lc", "true"),
    ("git", "--version"),
    ("python3", "-c", "import asyncio, json, subprocess"),
    ("rg", "--version"),
)
"""Run before the snapshot, so that every fork finds these programs in its page cache. A root file
system may lack any of them."""
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}


@dataclass(frozen=True)
class FirstStart:
    """How a driver starts, saves and ends the machine that boots."""

    driver: str
    fingerprint: str
    start: Callable[[MachineSpec], Awaitable[Machine]]
    save: Callable[[Machine, MachineSpec, Path], Awaitable[None]]
    end: Callable[[Machine], None]
    collect: Callable[[Sequence[MachineSpec]], Awaitable[None]]


def booted_path(*parts: str) -> Path:
    """Where the snapshot lies; `parts` are all that it depends on."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return home_dir() / "qemu" / f"booted-{digest[:16]}"


async def boot_into(target: Path, spec: MachineSpec, first: FirstStart) -> None:
    """Boot a machine like `spec` and leave its snapshot at `target`; seconds. On any failure
    nothing is left. Raises SandboxError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(_sweep, target.parent)
    work = Path(tempfile.mkdtemp(prefix="journeyman-boot-"))
    mine = replace(spec, id=work.name, directory=work, stands_still=False)
    machine: Machine | None = None
    try:
        machine = await first.start(mine)
        await _warm(machine.link)
        await machine.link.quiesce()
        await _write(target, machine, mine, first)
    finally:
        if machine is not None:
            first.end(machine)
        await asyncio.shield(first.collect([mine]))
        await asyncio.to_thread(shutil.rmtree, work)


def _sweep(directory: Path) -> None:
    """Forget kinds of machine that nobody has started for long; they would boot again."""
    for path in (*directory.glob("booted-*"), *directory.glob(".writing-*")):
        if time.time() - path.stat().st_mtime > _KEPT_S:
            shutil.rmtree(path, ignore_errors=True)


async def _warm(link: GuestLink) -> None:
    # The first answer comes once all has booted; the time of an epoch that waited as long would
    # be wrong.
    with link.channel() as channel:
        await channel.send(FrameKind.LIST_EXECS)
        await channel.receive(_BOOT_S)
    await link.begin_epoch(1, GuestIdentity(hostname="sandbox"), _BOOT_S)
    for argv in _WARMING:
        await run_command(link, Command(argv, "/", _ENVIRONMENT, b"", _BOOT_S))


async def _write(target: Path, machine: Machine, spec: MachineSpec, first: FirstStart) -> None:
    try:
        await write_snapshot(
            target,
            lambda into: first.save(machine, spec, into),
            driver=first.driver,
            fingerprint=first.fingerprint,
            next_number=machine.link.next_number,
        )
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        # Another service of this machine was faster.
