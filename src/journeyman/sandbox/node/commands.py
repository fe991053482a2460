"""Running commands in a guest."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from journeyman.sandbox.node.link import UNRESPONSIVE, Channel, GuestFileError, GuestLink
from journeyman.sandbox.wire.frames import (
    CHUNK_BYTES,
    STDIN_WINDOW_BYTES,
    ExecFlag,
    ExitHow,
    FrameKind,
    PayloadReader,
    ProtocolError,
    string,
    strings,
    u32,
)
from journeyman.types.failure import SandboxError, SandboxGone
from journeyman.types.sandbox import ExecResult

DEFAULT_KEPT_BYTES = 256 << 10
_GRACE_S = 30.0
"""How long past its time-out a command may take to be ended before the agent counts as dead."""


@dataclass(frozen=True)
class Command:
    """`kept_bytes` of stdout and of stderr are kept, half from each end."""

    argv: Sequence[str]
    cwd: str = "/"
    env: Mapping[str, str] | None = None
    stdin: bytes = b""
    timeout_s: float = 60.0
    kept_bytes: int = DEFAULT_KEPT_BYTES

    def payload(self) -> bytes:
        variables = (os.fsencode(f"{name}={value}") for name, value in (self.env or {}).items())
        return (
            u32(ExecFlag.STDIN if self.stdin else 0)
            + u32(max(1, round(self.timeout_s * 1000)))
            + u32(self.kept_bytes)
            + u32(0)  # no terminal
            + u32(0)
            + string(b"")  # root, with no variables but these
            + string(os.fsencode(self.cwd))
            + strings(os.fsencode(argument) for argument in self.argv)
            + strings(variables)
        )


class _Input:
    """Feeds stdin, never further ahead than the guest's window."""

    def __init__(self, channel: Channel, data: bytes) -> None:
        self._channel = channel
        self._data = data
        self._room = STDIN_WINDOW_BYTES
        self._changed = asyncio.Event()

    def credit(self, num_bytes: int) -> None:
        self._room += num_bytes
        self._changed.set()

    async def feed(self) -> None:
        at = 0
        while at < len(self._data):
            while not self._room:
                self._changed.clear()
                await self._changed.wait()
            piece = self._data[at : at + min(self._room, CHUNK_BYTES)]
            self._room -= len(piece)
            at += len(piece)
            await self._channel.send(FrameKind.STDIN, piece)
        await self._channel.send(FrameKind.STDIN)


class _Output:
    """Collects what the guest kept of both streams, bounded whatever the guest sends."""

    def __init__(self, kept_bytes: int) -> None:
        self.streams = (bytearray(), bytearray())
        self._limit = kept_bytes + CHUNK_BYTES

    def add(self, payload: bytes) -> None:
        stream = self.streams[payload[0] & 1] if payload else bytearray()
        stream += payload[1:]
        if len(stream) > self._limit:
            raise ProtocolError("it sent more output than it was asked to keep")


async def run_command(link: GuestLink, command: Command) -> ExecResult:
    """Run one command to its end. Cancelling this kills the command's whole tree.

    Raises SandboxGone, SandboxError when the guest can start no process, ValueError on NUL.
    """
    payload = command.payload()
    output = _Output(command.kept_bytes)
    with link.channel() as channel:
        async with _killed_unless_finished(link, channel) as finished:
            await channel.send(FrameKind.EXEC, payload)
            source = _Input(channel, command.stdin)
            feeder = asyncio.create_task(source.feed()) if command.stdin else None
            try:
                async with asyncio.timeout(command.timeout_s + _GRACE_S):
                    end = await _collect(channel, output, source)
            except TimeoutError:
                raise link.break_off(UNRESPONSIVE) from None
            except ProtocolError as error:
                raise link.break_off(error.cause, tampered=True) from None
            except GuestFileError as error:
                finished.set()
                raise SandboxError(
                    f"sandbox {link.name} cannot start a process: {error.strerror}",
                    "Its process or memory limit is reached: end some of its processes.",
                ) from None
            finally:
                if feeder:
                    feeder.cancel()
            finished.set()
    return _result(end, output)


async def _collect(channel: Channel, output: _Output, source: _Input) -> PayloadReader:
    while True:
        frame = await channel.receive(timeout_s=float("inf"))  # the caller's clock runs
        if frame.kind is FrameKind.EXITED:
            return PayloadReader(frame.payload)
        if frame.kind is FrameKind.OUTPUT:
            output.add(frame.payload)
        elif frame.kind is FrameKind.CREDIT:
            source.credit(PayloadReader(frame.payload).u32())


@asynccontextmanager
async def _killed_unless_finished(
    link: GuestLink, channel: Channel
) -> AsyncIterator[asyncio.Event]:
    finished = asyncio.Event()
    try:
        yield finished
    finally:
        if not finished.is_set() and not link.gone.is_set():
            await asyncio.shield(kill_command(link, channel.number))


async def kill_command(link: GuestLink, number: int, signal: int = 0) -> None:
    """Signal every process of a command; 0 ends them all. A finished command is no error."""
    try:
        await link.request(FrameKind.KILL, u32(number) + u32(signal), timeout_s=_GRACE_S)
    except GuestFileError as error:
        if error.errno != errno.ESRCH:
            raise
    except SandboxGone:
        return


def _result(end: PayloadReader, output: _Output) -> ExecResult:
    how, value, duration_ms = end.u8(), end.u32(), end.u64()
    dropped = (end.u64(), end.u64())
    if how == ExitHow.NOT_STARTED:
        raise SandboxError(
            f"a guest cannot start a process: {os.strerror(value)}",
            "Its process or memory limit is reached: end some of its processes.",
        )
    stdout, stderr = (
        _with_gap(bytes(stream), gap) for stream, gap in zip(output.streams, dropped, strict=True)
    )
    return ExecResult(
        exit_code=value if how == ExitHow.CODE else None,
        signal=value if how == ExitHow.SIGNAL else None,
        timed_out=how == ExitHow.TIMEOUT,
        stdout=stdout,
        stderr=stderr,
        dropped_bytes=sum(dropped),
        duration_s=duration_ms / 1000,
    )


def _with_gap(kept: bytes, dropped: int) -> bytes:
    """Say where the middle was cut: head and tail are of equal length."""
    if not dropped:
        return kept
    half = len(kept) // 2
    return kept[:half] + b"\n[... %d bytes dropped ...]\n" % dropped + kept[half:]
