"""The host's end of a guest agent: one pair of pipes, many conversations at a time."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from journeyman.sandbox.node.stillness import Stillness
from journeyman.sandbox.wire.frames import (
    CHUNK_BYTES,
    PROTOCOL_VERSION,
    Frame,
    FrameKind,
    FrameParser,
    PayloadReader,
    ProtocolError,
    encode,
    string,
    u32,
    u64,
)
from journeyman.types.failure import SandboxError, SandboxGone

UNRESPONSIVE = "its agent no longer answers"
_ANSWER_S = 300.0


class GuestFileError(OSError):
    """A file operation failed in the guest; `errno` is the guest's."""


@dataclass(frozen=True)
class GuestIdentity:
    """What differs between two forks. Empty strings keep what the guest has."""

    hostname: str = ""
    machine_id: str = ""
    boot_id: str = ""


class Channel:
    """One conversation on a link: frames of one number, in order."""

    def __init__(self, link: "GuestLink", number: int) -> None:
        self.number = number
        self._link = link
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()

    def deliver(self, frame: Frame | None) -> None:
        self._frames.put_nowait(frame)

    def waiting(self) -> list[Frame]:
        """Frames that have come and that nobody has received; from now on they have been."""
        frames = []
        while not self._frames.empty():
            if frame := self._frames.get_nowait():
                frames.append(frame)
        return frames

    async def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        await self._link.send(kind, self.number, payload)

    async def receive(self, timeout_s: float = _ANSWER_S) -> Frame:
        """The next frame. Raises SandboxGone, or GuestFileError where the guest refused. A guest
        that does not answer within `timeout_s` counts as gone."""
        try:
            async with asyncio.timeout(timeout_s):
                frame = await self._frames.get()
        except TimeoutError:
            raise self._link.break_off(UNRESPONSIVE) from None
        if frame is None:
            raise self._link.gone_error()
        if frame.kind is FrameKind.FAILED:
            payload = PayloadReader(frame.payload)
            number = payload.u32()
            what = os.fsdecode(payload.string())
            raise GuestFileError(number, os.strerror(number), what)
        return frame


class GuestLink:
    """One connection. When the guest ends, every waiting and later call raises SandboxGone."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first_number: int = 1,
    ) -> None:
        self.name = name
        self.gone = asyncio.Event()
        self._reader = reader
        self._writer = writer
        # Forks and resumed sandboxes inherit commands whose frames carry old numbers: counting
        # goes on where the snapshot left off, so that those are apart from new ones.
        self.next_number = first_number
        self._channels: dict[int, Channel] = {}
        self.cause = ""
        """Why it is gone, where that is known."""
        self.tampered = False
        """What runs in the guest has laid hands on the agent: no agent of ours sends that."""
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._users = 0
        self._stillness: Stillness | None = None
        self._pump = asyncio.create_task(self._receive(), name=f"guest link {name}")

    async def _receive(self) -> None:
        parser = FrameParser()
        try:
            while data := await self._reader.read(CHUNK_BYTES):
                for frame in parser.feed(data):
                    if channel := self._channels.get(frame.channel):
                        channel.deliver(frame)
        except ProtocolError as error:
            self.break_off(str(error), tampered=True)
        except OSError as error:
            self.cause = str(error)
        finally:
            self._end()

    def _end(self) -> None:
        self.gone.set()
        self._may_send.set()
        for channel in self._channels.values():
            channel.deliver(None)

    def gone_error(self) -> SandboxGone:
        cause = f": {self.cause}" if self.cause else ""
        return SandboxGone(f"sandbox {self.name} is gone{cause}", "Create a new one.")

    def break_off(self, cause: str, tampered: bool = False) -> SandboxGone:
        """Close because the guest misbehaves; returns the error to raise."""
        self.cause = cause
        self.tampered = tampered
        self.close()
        return self.gone_error()

    def close(self) -> None:
        """Close both pipes: the agent ends, and with PID 1 the whole sandbox."""
        if self._stillness:
            self._stillness.wake()
            self._stillness.close()
        self._writer.close()
        self._pump.cancel()
        self._end()

    async def send(self, kind: FrameKind, number: int, payload: bytes = b"") -> None:
        """Waits while a snapshot is taken: a guest must not be saved with half a frame read."""
        frame = encode(kind, number, payload)
        if kind is not FrameKind.EPOCH:
            await self._may_send.wait()
        try:
            self._writer.write(frame)
            await self._writer.drain()
        except ConnectionError:
            raise self.gone_error() from None

    def stand_still(self, stillness: Stillness) -> None:
        """From now on the guest runs only while somebody uses this link."""
        self._stillness = stillness
        if not self._users:
            stillness.rest()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The guest runs at least until the block is left."""
        self._users += 1
        if self._users == 1 and self._stillness:
            self._stillness.wake()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users and self._stillness and not self.gone.is_set():
                self._stillness.rest()

    @contextmanager
    def channel(self) -> Iterator[Channel]:
        """A fresh conversation, forgotten at the end."""
        channel = self.open_channel()
        try:
            with self.awake():
                yield channel
        finally:
            self.close_channel(channel)

    def open_channel(self, number: int | None = None) -> Channel:
        """A conversation until `close_channel`: a fresh one, or one that the guest brought along
        from an earlier life. Raises SandboxGone."""
        if self.gone.is_set():
            raise self.gone_error()
        if number is None:
            number = self.next_number
            self.next_number = (number + 1) & 0xFFFFFFFF
        channel = self._channels[number] = Channel(self, number)
        return channel

    def close_channel(self, channel: Channel) -> None:
        """Forget it: what the guest still sends on it is dropped. Idempotent."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]

    async def request(
        self, kind: FrameKind, payload: bytes = b"", timeout_s: float = _ANSWER_S
    ) -> PayloadReader:
        """One frame there, one frame back."""
        with self.channel() as channel:
            await channel.send(kind, payload)
            return PayloadReader((await channel.receive(timeout_s)).payload)

    async def begin_epoch(self, epoch: int, identity: GuestIdentity, timeout_s: float) -> None:
        """Feed entropy, clock and identity after a start or restore. Until this has succeeded
        the guest must not be handed out. Raises SandboxError."""
        seed = os.urandom(64)
        payload = u64(epoch) + u64(time.time_ns()) + u32(len(seed)) + seed
        for text in (identity.hostname, identity.machine_id, identity.boot_id):
            payload += string(text.encode())
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.request(FrameKind.EPOCH, payload)
        except (TimeoutError, OSError) as error:
            raise SandboxError(
                f"sandbox {self.name} did not take fresh entropy: {error!r}",
                "It was destroyed. If the machine is overloaded, start fewer sandboxes at once.",
            ) from None
        self._may_send.set()
        version, seen, guest_ns = answer.u32(), answer.u64(), answer.u64()
        if version != PROTOCOL_VERSION or seen != epoch:
            raise SandboxError(f"sandbox {self.name} answered epoch {seen} of version {version}")
        if abs(guest_ns - time.time_ns()) > 10e9:
            raise SandboxError(f"the clock of sandbox {self.name} is wrong by over 10 s")

    async def quiesce(self, timeout_s: float = 30.0) -> None:
        """After this the guest sends nothing until the next epoch: now a snapshot is whole."""
        with self.channel() as channel:
            await channel.send(FrameKind.QUIESCE)
            self._may_send.clear()
            await channel.receive(timeout_s)


async def open_link(name: str, from_guest: int, to_guest: int, first_number: int = 1) -> GuestLink:
    """Take over the host's ends of the two pipes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=4 * CHUNK_BYTES)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_guest, "rb", buffering=0)
    )
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(to_guest, "wb", buffering=0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    return GuestLink(name, reader, writer, first_number)
