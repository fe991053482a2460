"""Live migration of virtual machines under write load, and what is left when it fails half-way."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from journeyman.sandbox.node.agent_build import build_agent
from journeyman.sandbox.node.commands import Command, run_command
from journeyman.sandbox.node.driver import Limits, MachineSpec
from journeyman.sandbox.node.link import GuestIdentity, GuestLink
from journeyman.sandbox.node.qemu import QemuDriver
from journeyman.sandbox.node.qemu_machine import QemuMachine
from journeyman.sandbox.node.qemu_migrate import depart, departing
from journeyman.sandbox.node.qemu_passage import Gate, RemoteTarget
from journeyman.sandbox.node.relay import Streams
from journeyman.sandbox.node.rootfs import install_agent, require_rootfs
from journeyman.sandbox.wire.frames import FrameKind
from journeyman.types import SandboxError, SandboxGone

WRITER = """
import os, time
log = os.open("/root/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
block, buffers, n = os.urandom(1 << 20), [bytearray(1 << 20) for _ in range(16)], 0
began = time.monotonic()
while not os.path.exists("/tmp/stop"):
    buffers[n % 16][:] = block
    os.write(log, b"%d\\n" % n)
    if n % 4 == 0: os.fsync(log)
    n += 1
    time.sleep(max(0, n / 20 - (time.monotonic() - began)))
open("/tmp/told", "w").write(str(n))
"""
"""20 MB of memory a second, and 20 lines a second to the disk."""
ON_DISK = "dd if=big iflag=direct bs=64k status=none | sha256sum"
"""Past the guest's page cache."""
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}


async def sh(link: GuestLink, script: str, stdin: bytes = b"") -> str:
    command = Command(("sh", "-c", script), "/root", ENVIRONMENT, stdin, 60)
    return (await run_command(link, command)).text


class Move:
    """A machine under load, and the place where it is to go."""

    def __init__(self, driver: QemuDriver, machine: QemuMachine, specs: list[MachineSpec]) -> None:
        self.driver, self.machine = driver, machine
        self.source, self.target = specs
        self.arrival = driver.arrival(self.target, departing(machine))
        self.remote = RemoteTarget(self.connect, "token")
        self.port = ""

    async def connect(self) -> Streams:
        return await asyncio.open_unix_connection(self.port)


@asynccontextmanager
async def under_load(tmp_path: Path) -> AsyncIterator[Move]:
    driver = QemuDriver()
    await driver.probe()
    rootfs = require_rootfs()
    agent = install_agent(rootfs, build_agent())
    specs = []
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
        identifier = f"migration-{name}-{os.getpid()}"
        specs.append(MachineSpec(identifier, tmp_path / name, rootfs, agent, Limits()))
    machine = await driver.boot(specs[0])
    assert isinstance(machine, QemuMachine)
    move = Move(driver, machine, specs)
    move.port = str(tmp_path / "port")
    server = await asyncio.start_unix_server(Gate(move.arrival, "token").handle, move.port)
    try:
        await machine.link.begin_epoch(1, GuestIdentity(hostname="moving"), 30)
        await sh(
            machine.link, "cat >writer.py; head -c 30000000 /dev/urandom >big", WRITER.encode()
        )
        await sh(machine.link, "python3 writer.py >/tmp/err 2>&1 & while ! test -s log; do :; done")
        yield move
    finally:
        server.close()
        move.arrival.abort()
        driver.kill(machine)
        await driver.collect(specs)


async def finish(link: GuestLink) -> None:
    """Stop the load, and see that every line is there once, in order."""
    script = (
        "touch /tmp/stop; while ! test -s /tmp/told; do sleep 0.1; done; cat /tmp/told /tmp/err"
    )
    told = await sh(link, script)
    lines = (await sh(link, "cat log")).split()
    lines = [line for line in lines if line.isdigit()]
    assert lines == [str(number) for number in range(int(told))]


def test_nothing_is_lost_and_the_source_has_stopped(tmp_path: Path) -> None:
    async def check() -> None:
        async with under_load(tmp_path) as move:
            digest = await sh(move.machine.link, "sha256sum big")
            departure = await depart(move.machine, move.remote)
            status = await move.machine.monitor.execute("query-status")
            assert status["running"] is False
            waiting = await move.arrival.machine().monitor.execute("query-status")
            assert waiting["running"] is False
            arrived = await move.arrival.commit(departure.next_number)
            downtime = time.monotonic() - departure.stopped_at
            move.driver.kill(move.machine)
            await arrived.link.begin_epoch(2, GuestIdentity(), 30)
            assert await sh(arrived.link, "sha256sum big; hostname") == f"{digest}moving\n"
            await finish(arrived.link)
            print(f"downtime {1000 * downtime:.0f} ms, copying {departure.copying_s:.2f} s")

    asyncio.run(check())


def test_a_machine_that_has_arrived_can_be_saved_before_it_has_written(tmp_path: Path) -> None:
    async def check() -> None:
        async with under_load(tmp_path) as move:
            await finish(move.machine.link)
            digest = await sh(move.machine.link, f"sync; {ON_DISK}")
            departure = await depart(move.machine, move.remote)
            arrived = await move.arrival.commit(departure.next_number)
            move.driver.kill(move.machine)
            snapshot = tmp_path / "snapshot"
            snapshot.mkdir()
            await move.driver.snapshot(arrived, move.target, snapshot)
            move.driver.kill(arrived)
            await move.driver.collect([move.target])
            again = await move.driver.restore(move.target, snapshot, departure.next_number)
            try:
                await again.link.begin_epoch(2, GuestIdentity(), 30)
                assert await sh(again.link, ON_DISK) == digest
                assert await sh(again.link, "hostname") == "moving\n"
            finally:
                move.driver.kill(again)

    asyncio.run(check())


async def _kill_target(move: Move) -> None:
    os.kill(move.arrival.machine().pid, signal.SIGKILL)


async def _refuse(move: Move) -> None:
    raise SandboxError("the other node is gone")


@pytest.mark.parametrize("harm", [_kill_target, _refuse], ids=["target killed", "node gone"])
@pytest.mark.parametrize("when", ["connect_disk", "connect_memory", "loaded"])
def test_the_source_runs_on_when_the_target_fails(
    tmp_path: Path, when: str, harm: Callable[[Move], Any]
) -> None:
    async def check() -> None:
        async with under_load(tmp_path) as move:
            remote = move.remote
            original = getattr(remote, when)

            async def harmed() -> Any:
                if when == "loaded":
                    await harm(move)
                    return await original()
                reader, writer = await original()
                try:
                    await harm(move)
                except SandboxError:
                    writer.close()
                    raise
                return reader, writer

            setattr(remote, when, harmed)
            with pytest.raises(SandboxError):
                await depart(move.machine, remote)
            move.arrival.abort()
            await move.machine.link.begin_epoch(2, GuestIdentity(), 30)
            await finish(move.machine.link)

    asyncio.run(check())


def test_a_source_that_dies_half_way_leaves_no_second_machine(tmp_path: Path) -> None:
    async def check() -> None:
        async with under_load(tmp_path) as move:
            remote = move.remote
            connect = remote.connect_memory

            async def connect_and_die() -> Any:
                streams = await connect()
                os.kill(move.machine.pid, signal.SIGKILL)
                return streams

            remote.connect_memory = connect_and_die  # type: ignore[method-assign]
            with pytest.raises(SandboxError):
                await depart(move.machine, remote)
            with pytest.raises(SandboxError):
                await asyncio.wait_for(move.arrival.loaded(), 30)
            with pytest.raises(SandboxGone):
                await move.machine.link.request(FrameKind.LIST_EXECS)

    asyncio.run(check())


def test_the_port_takes_nothing_but_what_it_was_opened_for(tmp_path: Path) -> None:
    async def check() -> None:
        async with under_load(tmp_path) as move:
            (file := tmp_path / "file").write_bytes(b"content")
            for name in ("../../escape", "other", ""):
                with pytest.raises(SandboxError, match="no overlay"):
                    await move.remote.copy_overlay(name, file)
            (overlay,) = move.machine.disk.layers
            stranger = RemoteTarget(move.connect, "another token")
            for call in (
                stranger.copy_overlay(overlay, file),
                stranger.start(),
                stranger.connect_disk(),
                stranger.connect_memory(),
                stranger.loaded(),
            ):
                with pytest.raises(SandboxError, match="token is not"):
                    await call
            for early in (move.remote.connect_memory(), move.remote.connect_disk()):
                with pytest.raises(SandboxError, match="not been started"):
                    await early
            for rubbish in (b"", b"\n", b"[]\n", b"{}\n", b"x" * (1 << 20) + b"\n"):
                reader, writer = await move.connect()
                writer.write(rubbish)
                writer.write_eof()
                with suppress(ConnectionResetError):  # of what it did not even read
                    assert b"error" in await reader.read()
                writer.close()
            reader, writer = await move.connect()
            short = {"token": "token", "what": "overlay", "name": overlay, "size": 10}
            writer.write(json.dumps(short).encode() + b"\n" + b"123")
            writer.write_eof()
            assert b"ended 7 bytes early" in await reader.read()
            writer.close()
            await finish(move.machine.link)

    asyncio.run(check())
