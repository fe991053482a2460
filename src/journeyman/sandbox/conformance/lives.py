"""Lives: ends, hibernation, corrupt snapshots."""

import asyncio
import time
from pathlib import Path

from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.sandbox.conformance.case import Bench, Violation, case, equal, require
from journeyman.sandbox.conformance.guests import (
    HOLDER,
    digest_of_holder,
    identity,
    start_holder,
)
from journeyman.sandbox.conformance.promises import MEMORY
from journeyman.types.failure import SandboxError, SandboxGone
from journeyman.types.sandbox import Environment

_TIMES = 5


@case("a closed sandbox is gone, and says so")
async def closing_is_final(bench: Bench) -> None:
    sandbox = await bench.create()
    running = asyncio.create_task(sandbox.exec(["sleep", "60"]))
    await asyncio.sleep(0.3)
    await asyncio.gather(sandbox.close(), sandbox.close())
    for call in (running, sandbox.exec(["true"]), sandbox.fork()):
        try:
            await call
        except SandboxGone as error:
            require(sandbox.id in error.cause, error.cause)
        else:
            raise Violation("a call on a closed sandbox worked")


@case("a lease that runs out ends the sandbox")
async def a_lease_runs_out(bench: Bench) -> None:
    environment = Environment(template=bench.template)
    sandbox = bench.own(await bench.client.create(environment, lease_s=1.0))
    await asyncio.sleep(3.0)
    try:
        await sandbox.exec(["true"])
    except SandboxGone as error:
        require("lease" in error.cause, error.cause)
    else:
        raise Violation("it lives on")


@case("five hibernations keep files, processes, memory and identity", MEMORY)
async def hibernation_keeps_everything(bench: Bench) -> None:
    sandbox = await bench.create({"/root/holder.py": HOLDER})
    digest = await start_holder(sandbox)
    before = await identity(sandbox)
    for number in range(_TIMES):
        await sandbox.write_file(f"/root/file{number}", b"%d" % number)
        await sandbox.hibernate()
        equal(await digest_of_holder(sandbox), digest)
    for number in range(_TIMES):
        equal(await sandbox.read_file(f"/root/file{number}"), b"%d" % number)
    after = await identity(sandbox)
    equal(
        [after[key] for key in ("boot", "machine", "host")],
        [before[key] for key in ("boot", "machine", "host")],
    )
    require(after["monotonic"] >= before["monotonic"], "monotonic time went backwards")
    off = abs(float(after["time"]) - time.time())
    require(off < 1, f"the clock is {off:.2f} s off")


@case("a write under way at the snapshot is whole in both lives from it", MEMORY)
async def two_lives_of_one_snapshot_are_clean(bench: Bench) -> None:
    sandbox = await bench.create()
    # Not synced: the data are in the guest's memory, on its disk, or on the way there.
    await sandbox.exec(["sh", "-c", "head -c 20000000 /dev/urandom >/root/data"])
    digest = (await sandbox.exec(["sha256sum", "/root/data"])).stdout
    await sandbox.hibernate()
    lives = [bench.own(await sandbox.fork()) for _ in range(2)]
    for number, life in enumerate((*lives, sandbox)):
        await life.exec(["sh", "-c", f"sync; echo {number} >/root/mine; sync"])
    for number, life in enumerate((*lives, sandbox)):
        equal((await life.exec(["sha256sum", "/root/data"])).stdout, digest)
        equal(await life.read_file("/root/mine"), b"%d\n" % number)


@case("a corrupt snapshot is refused before it runs; mended, it resumes", MEMORY)
async def a_corrupt_snapshot_is_refused(bench: Bench) -> None:
    sandbox = await bench.create()
    await sandbox.write_file("/root/kept", b"kept")
    await sandbox.hibernate()
    victim = await asyncio.to_thread(_largest_file, bench.state, sandbox.id)
    await asyncio.to_thread(_flip, victim)
    try:
        await sandbox.resume()
    except SandboxError as error:
        require(victim.name in error.cause, error.cause)
    else:
        raise Violation(f"it resumed although {victim.name} was changed")
    await asyncio.to_thread(_flip, victim)
    equal(await sandbox.read_file("/root/kept"), b"kept")


def _largest_file(state: Path, sandbox_id: str) -> Path:
    manifests = sorted(state.glob(f"**/{sandbox_id}/**/manifest.json"))
    require(bool(manifests), "the hibernated sandbox has no snapshot on disk")
    files = [path for path in manifests[-1].parent.iterdir() if path != manifests[-1]]
    # A file with more than one name belongs to another snapshot too.
    own = [path for path in files if path.is_file() and path.stat().st_nlink == 1]
    return max(own, key=lambda path: path.stat().st_size)


def _flip(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


@case("a loopback connection survives hibernation", MEMORY)
async def a_loopback_connection_survives(bench: Bench) -> None:
    sandbox = await bench.create({"/root/echo.py": _ECHO})
    await _start(sandbox, "python3 /root/echo.py", "/tmp/connected")
    await sandbox.hibernate()
    await sandbox.write_file("/tmp/go", b"")
    wait = "while ! test -s /tmp/said; do sleep 0.05; done; cat /tmp/said"
    equal((await sandbox.exec(["sh", "-c", wait], timeout_s=30)).stdout, b"HELLO")


_ECHO = b"""
import os, socket, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer, _ = server.accept()
open("/tmp/connected", "w").write("1")
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
client.sendall(b"hello")
peer.sendall(peer.recv(100).upper())
said = client.recv(100)
open("/tmp/new", "wb").write(said)
os.rename("/tmp/new", "/tmp/said")
"""


async def _start(sandbox: RemoteSandbox, command: str, sign: str) -> None:
    """In the background, until it has written the file `sign`."""
    script = f"{command} >/dev/null 2>&1 & while ! test -s {sign}; do sleep 0.05; done"
    equal((await sandbox.exec(["sh", "-c", script], timeout_s=60)).exit_code, 0)
