"""Files: whole, atomic, confined."""

import errno
import hashlib
import os
from pathlib import Path

from journeyman.sandbox.conformance.case import Bench, Violation, case, equal, require
from journeyman.sandbox.conformance.promises import DISK

_SHADOW = Path("/etc/shadow")


@case("large files arrive whole both ways")
async def large_files_arrive_whole(bench: Bench) -> None:
    sandbox = await bench.create()
    data = os.urandom(1 << 20) * 16
    await sandbox.write_file("/root/deep/new/big", data)
    told = (await sandbox.exec(["sha256sum", "/root/deep/new/big"])).stdout.split()[0]
    equal(told.decode(), hashlib.sha256(data).hexdigest())
    require(await sandbox.read_file("/root/deep/new/big") == data, "other bytes came back")


@case("names of any bytes work")
async def odd_names_work(bench: Bench) -> None:
    sandbox = await bench.create()
    for name in ("with space", "new\nline", "-rf", os.fsdecode(b"raw\xff\xfe"), "a&b=c?d#e%20"):
        await sandbox.write_file(f"/root/odd/{name}", b"content")
        equal(await sandbox.read_file(f"/root/odd/{name}"), b"content")
        equal([entry.name for entry in await sandbox.list("/root/odd")], [os.fsencode(name)])
        await sandbox.remove(f"/root/odd/{name}")


@case("a write that fails leaves the old file; with space again it works again")
async def a_failed_write_leaves_the_old_file(bench: Bench) -> None:
    sandbox = await bench.create()
    await sandbox.write_file("/tmp/kept", b"old")
    await sandbox.exec(["sh", "-c", "head -c 300000000 /dev/zero >/tmp/filler"])
    try:
        await sandbox.write_file("/tmp/kept", bytes(4 << 20))
    except OSError as error:
        equal(error.errno, errno.ENOSPC)
    else:
        raise Violation("4 MiB were written to a full /tmp")
    equal(await sandbox.read_file("/tmp/kept"), b"old")
    await sandbox.remove("/tmp/filler")
    await sandbox.write_file("/tmp/kept", b"new")
    equal(await sandbox.read_file("/tmp/kept"), b"new")


@case("a full disk is an error, and after removing files it works again", DISK)
async def a_full_disk_is_an_error(bench: Bench) -> None:
    sandbox = await bench.create()
    asked = (
        "set -- $(df -B1 --output=avail /root | tail -1); fallocate -l $(($1 - 1000000)) /root/f"
    )
    equal((await sandbox.exec(["sh", "-c", asked], timeout_s=120)).text, "")
    full = await sandbox.exec(["sh", "-c", "head -c 8000000 /dev/zero >/root/g"], timeout_s=60)
    require(b"No space left" in full.stderr, full.text)
    await sandbox.exec(["rm", "/root/f", "/root/g"])
    await sandbox.write_file("/root/g", b"fits")
    equal(await sandbox.read_file("/root/g"), b"fits")


@case("links and dots lead to the guest's own files")
async def paths_stay_in_the_guest(bench: Bench) -> None:
    sandbox = await bench.create()
    await sandbox.write_file("/etc/shadow", b"the guest's own")
    await sandbox.exec(["ln", "-s", "/etc/shadow", "/root/link"])
    for path in ("/root/link", "/root/../../../../etc/shadow"):
        equal(await sandbox.read_file(path), b"the guest's own")
    require(_SHADOW.read_bytes() != b"the guest's own", "the host's file was written")  # noqa: ASYNC240


@case("errors carry their kind")
async def errors_carry_their_kind(bench: Bench) -> None:
    sandbox = await bench.create()
    for path, kind in (("/no/such", FileNotFoundError), ("/etc", IsADirectoryError)):
        try:
            await sandbox.read_file(path)
        except kind:
            continue
        raise Violation(f"reading {path} did not raise {kind.__name__}")
