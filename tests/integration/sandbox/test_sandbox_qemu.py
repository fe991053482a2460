"""What only virtual machines promise: the jail around QEMU, and snapshots of what changed."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engines import engine_pid, left_of

from journeyman.config.home import home_dir
from journeyman.sandbox.client import RemoteSandbox, SandboxClient, TemplateSpec
from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.driver import Limits, MachineSpec
from journeyman.sandbox.node.qemu import QemuDriver
from journeyman.sandbox.node.qemu_disk import MAX_LAYERS
from journeyman.sandbox.node.qemu_jail import jail_uid
from journeyman.sandbox.node.qemu_machine import QemuMachine
from journeyman.sandbox.node.qemu_state import completed, expect_end
from journeyman.sandbox.node.rootfs import install_agent, require_rootfs
from journeyman.sandbox.service.launch import running_service
from journeyman.types import Environment, SandboxError, SandboxGone

NAMESPACES = ("mnt", "net", "pid", "ipc", "uts")


@dataclass
class Machines:
    """A service of virtual machines, its state directory, and the loop they live on."""

    client: SandboxClient
    template: str
    state: Path
    runner: asyncio.Runner

    async def create(self) -> RemoteSandbox:
        return await self.client.create(Environment(template=self.template), lease_s=600)

    def run(self, check: Callable[[], Awaitable[Any]]) -> Any:
        return self.runner.run(check())


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    state = tmp_path_factory.mktemp("machines")
    with asyncio.Runner() as runner:
        context = running_service("qemu", state)
        client = SandboxClient(runner.run(context.__aenter__()))
        template = runner.run(client.build_template(TemplateSpec()))
        try:
            yield Machines(client, template, state, runner)
        finally:
            runner.run(client.aclose())
            runner.run(context.__aexit__(None, None, None))


def text(path: str) -> str:
    return Path(path).read_text()


def names(path: str | Path) -> set[str]:
    return {entry.name for entry in Path(path).iterdir()}


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text() if lives(pid) else ""


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def status(pid: int) -> dict[str, str]:
    lines = text(f"/proc/{pid}/status").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def test_qemu_has_a_user_namespaces_and_root_of_its_own(machines: Machines) -> None:
    async def check() -> None:
        sandbox = await machines.create()
        pid = engine_pid(sandbox.id, "qemu")
        seen = status(pid)
        assert set(seen["Uid"].split()) == set(seen["Gid"].split()) == {str(jail_uid(sandbox.id))}
        assert seen["Groups"].strip() == ""
        for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(seen[kind], 16) == 0, kind
        assert (seen["NoNewPrivs"], seen["Seccomp"]) == ("1", "2")
        for name in NAMESPACES:
            assert os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
        visible = {"dev", "etc", "image", "lib", "lib64", "lib-layers.so", "machine", "ram", "usr"}
        assert names(f"/proc/{pid}/root") == visible
        assert names(f"/proc/{pid}/root/etc") == {"ld.so.cache"}
        assert names(f"/proc/{pid}/root/usr/bin") == {"qemu-system-x86_64", "setpriv"}
        assert text(f"/proc/{pid}/net/dev").count(":") == 1  # loopback
        await sandbox.close()

    machines.run(check)


ESCAPE = """
import os, sys
os.chroot(sys.argv[1])
os.chdir("/")
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError:
        return
    print(what.__name__, arguments)
for folder, _, names in os.walk("/"):
    attempt(os.mkdir, os.path.join(folder, "made"))
    for name in names:
        path = os.path.join(folder, name)
        if not path.startswith(("/usr", "/dev")):
            attempt(os.open, path, os.O_RDWR)
            attempt(os.unlink, path)
"""


def test_who_takes_over_qemu_can_write_its_own_overlay_and_nothing_else(
    machines: Machines,
) -> None:
    async def check() -> None:
        sandbox = await machines.create()
        uid = str(jail_uid(sandbox.id))
        pid = engine_pid(sandbox.id, "qemu")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", ESCAPE, f"/proc/{pid}/root", uid),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        done = output.decode().splitlines()
        machine = machines.state / "sandboxes" / sandbox.id / "machine" / "disk"
        own = [path.name for path in machine.iterdir() if path.stat().st_uid == int(uid)]
        assert len(own) == 1
        assert sorted(done) == sorted(
            [
                f"open ('/machine/disk/{own[0]}', {os.O_RDWR})",
                f"open ('/ram/ram', {os.O_RDWR})",
                "unlink ('/ram/ram',)",  # gone by now: nothing is ever read from it
                "mkdir ('/ram/made',)",
            ]
        )
        assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"
        await sandbox.close()

    machines.run(check)


@pytest.mark.parametrize(
    "attack",
    [
        "echo b >/proc/sysrq-trigger; false",
        "echo '|/bin/sh -c reboot' >/proc/sys/kernel/core_pattern",
        "echo 1 >/sys/bus/pci/devices/0000:00:03.0/remove",
        "mount -o remount,rw /proc/sys || mount -o remount,rw /sys",
        "mknod /root/disk b 254 0 || cat /dev/vda",
        "python3 -c 'import ctypes; libc = ctypes.CDLL(None); exit(libc.reboot(0x1234567) != 0)'",
    ],
)
def test_root_in_the_guest_neither_stops_its_machine_nor_takes_its_disk(
    machines: Machines, attack: str
) -> None:
    async def check() -> None:
        sandbox = await machines.create()
        assert (await sandbox.exec(["sh", "-c", attack], timeout_s=20)).exit_code != 0
        assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"
        await sandbox.close()

    machines.run(check)


ON_DISK = "for f in /root/f*; do dd if=$f iflag=direct bs=64k status=none | sha256sum; done"
"""What lies on the disk, past the guest's page cache."""


def test_a_long_life_of_snapshots_keeps_few_overlays_and_every_file(machines: Machines) -> None:
    lives = MAX_LAYERS + 1

    async def check() -> None:
        sandbox = await machines.create()
        for number in range(lives):
            script = f"head -c 300000 /dev/urandom >/root/f{number}; sync; {ON_DISK}"
            told = (await sandbox.exec(["sh", "-c", script])).stdout
            await sandbox.hibernate()
            # A life without a write: when overlays are merged, all the topmost holds is theirs.
            assert (await sandbox.exec(["sh", "-c", ON_DISK])).stdout == told
            await sandbox.hibernate()
        assert told.count(b"\n") == len(set(told.splitlines())) == lives
        directory = machines.state / "sandboxes" / sandbox.id
        newest = max(directory.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
        assert len(list(newest.glob("disk-*"))) <= MAX_LAYERS + 1
        assert (await sandbox.exec(["sh", "-c", ON_DISK])).stdout == told
        await sandbox.close()

    machines.run(check)


def test_a_snapshot_holds_what_changed_and_shares_the_rest(machines: Machines) -> None:
    async def check() -> None:
        sandbox = await machines.create()
        script = "import os; data = os.urandom(32 << 20); open('/tmp/on', 'w'); input()"
        wait = "while ! test -e /tmp/on; do sleep 0.05; done"
        start = f'mkfifo /tmp/in; python3 -c "{script}" <>/tmp/in >/dev/null 2>&1 & {wait}'
        await sandbox.exec(["sh", "-c", start])
        await sandbox.hibernate()
        (snapshot,) = (machines.state / "sandboxes" / sandbox.id).glob("snapshots/*")
        sizes = [path.stat() for path in snapshot.iterdir()]
        own = sum(stat.st_size for stat in sizes if stat.st_nlink == 1)
        shared = sum(stat.st_size for stat in sizes if stat.st_nlink > 1)
        assert 32 << 20 < own < 96 << 20 < shared
        await sandbox.close()

    machines.run(check)


def test_an_idle_fork_has_less_than_50_megabytes_of_its_own(machines: Machines) -> None:
    async def check() -> None:
        sandbox = await machines.create()
        await sandbox.exec(["true"])
        told = text(f"/proc/{engine_pid(sandbox.id, 'qemu')}/smaps_rollup")
        (private,) = [line.split()[1] for line in told.splitlines() if "Private_Dirty" in line]
        assert int(private) < 50 << 10
        await sandbox.close()

    machines.run(check)


def test_a_machine_that_dies_is_named_not_replaced(machines: Machines) -> None:
    async def check() -> None:
        sandbox = await machines.create()
        running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
        await asyncio.sleep(0.3)
        os.kill(engine_pid(sandbox.id, "qemu"), signal.SIGKILL)
        for call in (running, sandbox.exec(["true"]), machines.client.connect(sandbox.id)):
            with pytest.raises(SandboxGone, match=sandbox.id):
                await call

    machines.run(check)


def test_qemu_starts_no_program_even_when_its_monitor_asks_for_one(tmp_path: Path) -> None:
    async def check() -> None:
        driver = QemuDriver()
        await driver.probe()
        rootfs = require_rootfs()
        spec = MachineSpec(
            f"no-program-{os.getpid()}",
            *(tmp_path, rootfs, install_agent(rootfs, build_agent()), Limits()),
        )
        machine = await driver.boot(spec)
        assert isinstance(machine, QemuMachine)
        try:
            before = names(tmp_path / "machine" / "disk")
            failed = expect_end(machine.monitor)
            with pytest.raises(SandboxError):
                await machine.monitor.execute("migrate", uri="exec:cat >/ram/written")
                await completed(failed, "start a program")
            assert names(tmp_path / "machine" / "disk") == before
            assert children_of(machine.pid) == ""
        finally:
            driver.kill(machine)
            await driver.collect([spec])

    asyncio.run(check())


def test_a_machine_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """The kernel gives up when the first program does: here for an impossible size of /tmp."""

    async def check() -> None:
        driver = QemuDriver()
        await driver.probe()
        rootfs = require_rootfs()
        agent = install_agent(rootfs, build_agent())
        spec = MachineSpec("impossible", tmp_path, rootfs, agent, Limits(tmp_bytes=-1))
        before = names(home_dir() / "qemu")
        with pytest.raises(SandboxGone, match=r"kernel panicked: cannot /new/tmp: Invalid.*init"):
            await driver.boot(spec)
        assert names(home_dir() / "qemu") == before
        assert names(tmp_path) == set()

    asyncio.run(check())


def test_a_service_killed_with_9_takes_its_machines_with_it(tmp_path: Path) -> None:
    async def check() -> None:
        socket = tmp_path / "s"
        arguments = ("--driver", "qemu", "--socket", str(socket), "--state", str(tmp_path))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "journeyman.sandbox.service", *arguments),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        deadline = time.monotonic() + 60
        while not socket.exists():
            assert process.returncode is None and time.monotonic() < deadline
            await asyncio.sleep(0.05)
        async with SandboxClient(f"unix://{socket}") as client:
            environment = Environment(template=await client.build_template(TemplateSpec()))
            running = await client.create(environment)
            asleep = await client.create(environment)
            await asleep.write_file("/root/kept", b"kept")
            await asleep.hibernate()
            engine = engine_pid(running.id, "qemu")
        process.kill()
        await process.wait()
        while lives(engine):
            assert time.monotonic() < deadline, "QEMU outlives its service"
            await asyncio.sleep(0.05)
        async with running_service("qemu", tmp_path) as url, SandboxClient(url) as client:
            with pytest.raises(SandboxGone, match="service was killed"):
                await client.connect(running.id)
            found = await client.connect(asleep.id)
            assert await found.read_file("/root/kept") == b"kept"
            await found.close()
            for sandbox in (running, found):
                while left := left_of(sandbox.id, tmp_path / "sandboxes"):
                    assert time.monotonic() < deadline + 60, left
                    await asyncio.sleep(0.1)

    asyncio.run(check())
