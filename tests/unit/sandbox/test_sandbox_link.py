"""The host's end of a guest, against peers that do not behave."""

import asyncio
import os
import struct
import time
from contextlib import asynccontextmanager

import pytest

from journeyman.sandbox.node.commands import Command, run_command
from journeyman.sandbox.node.files import read_file
from journeyman.sandbox.node.link import GuestIdentity, open_link
from journeyman.sandbox.wire.frames import (
    MAX_PAYLOAD_BYTES,
    PROTOCOL_VERSION,
    FrameKind,
    encode,
    u32,
    u64,
)
from journeyman.types import SandboxError, SandboxGone


@asynccontextmanager
async def peer():
    """A link and the two descriptors of its guest's end: what it reads, what it writes."""
    guest_in, to_guest = os.pipe()
    from_guest, guest_out = os.pipe()
    link = await open_link("sb-test", from_guest, to_guest)
    try:
        yield link, guest_in, guest_out
    finally:
        link.close()
        os.close(guest_in)
        os.close(guest_out)
        await asyncio.sleep(0)


async def request_channel(guest_in: int) -> int:
    """The channel number of the first frame the host sent."""
    header = await asyncio.to_thread(os.read, guest_in, 9)
    return struct.unpack("<IBI", header)[2]


def epoch_answer(epoch: int, clock_ns: int, version: int = PROTOCOL_VERSION) -> bytes:
    return u32(version) + u64(epoch) + u64(clock_ns) + bytes(16)


def test_a_guest_that_never_takes_entropy_is_an_error_in_bounded_time():
    async def check():
        async with peer() as (link, _, _):
            with pytest.raises(SandboxError, match="fresh entropy"):
                await link.begin_epoch(1, GuestIdentity(), timeout_s=0.2)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: epoch_answer(7, time.time_ns()), "answered epoch 7"),
        (lambda: epoch_answer(1, time.time_ns(), version=9), "version 9"),
        (lambda: epoch_answer(1, time.time_ns() - 60 * 10**9), "clock"),
        (lambda: b"short", "ends"),
    ],
)
def test_a_wrong_epoch_version_or_clock_is_refused(answer, message):
    async def check():
        async with peer() as (link, guest_in, guest_out):
            waiting = asyncio.create_task(link.begin_epoch(1, GuestIdentity(), timeout_s=60))
            channel = await request_channel(guest_in)
            os.write(guest_out, encode(FrameKind.OK, channel, answer()))
            with pytest.raises(SandboxError, match=message):
                await waiting

    asyncio.run(check())


def test_a_guest_that_sends_rubbish_is_gone_and_says_why():
    async def check():
        async with peer() as (link, guest_in, guest_out):
            waiting = asyncio.create_task(run_command(link, Command(("true",))))
            await request_channel(guest_in)
            os.write(guest_out, struct.pack("<IBI", MAX_PAYLOAD_BYTES + 1, FrameKind.OK, 1))
            with pytest.raises(SandboxGone, match="sb-test is gone: .*1048577 bytes"):
                await waiting
            with pytest.raises(SandboxGone):
                await run_command(link, Command(("true",)))

    asyncio.run(check())


def test_a_guest_cannot_make_the_host_hold_more_output_than_agreed():
    async def check():
        async with peer() as (link, guest_in, guest_out):
            command = Command(("yes",), kept_bytes=1000)
            waiting = asyncio.create_task(run_command(link, command))
            channel = await request_channel(guest_in)
            for _ in range(4):
                frame = encode(FrameKind.OUTPUT, channel, b"\0" + bytes(60_000))
                await asyncio.to_thread(os.write, guest_out, frame)
            with pytest.raises(SandboxGone, match="more output"):
                async with asyncio.timeout(60):
                    await waiting

    asyncio.run(check())


def test_a_read_that_ends_early_is_gone_not_short():
    async def check():
        async with peer() as (link, guest_in, guest_out):

            async def read():
                return [piece async for piece in read_file(link, "/x", 100)]

            waiting = asyncio.create_task(read())
            channel = await request_channel(guest_in)
            os.write(guest_out, encode(FrameKind.DATA, channel, b"half"))
            await asyncio.sleep(0.05)
            link.close()
            with pytest.raises(SandboxGone):
                await waiting

    asyncio.run(check())
