"""Frames between a node and the guest agent; the other end is `guest/agent.h`.

Frame: u32 payload length, u8 kind, u32 channel, payload. Little-endian. What a guest sends is
untrusted: the parser refuses anything out of bounds and never holds more than one frame.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from journeyman.types.failure import SandboxError

PROTOCOL_VERSION = 2
MAX_PAYLOAD_BYTES = 1 << 20
CHUNK_BYTES = 64 << 10
STDIN_WINDOW_BYTES = 256 << 10
OUTPUT_WINDOW_BYTES = 256 << 10
_HEADER = struct.Struct("<IBI")


class FrameKind(IntEnum):
    """Up to 63 from host to guest, from 64 on from guest to host."""

    EPOCH = 1
    QUIESCE = 2
    EXEC = 3
    STDIN = 4
    KILL = 5
    LIST_EXECS = 6
    RESIZE = 7
    GRANT = 8
    READ = 10
    WRITE_OPEN = 11
    WRITE_DATA = 12
    WRITE_COMMIT = 13
    WRITE_ABORT = 14
    STAT = 15
    LIST = 16
    MAKE_DIR = 17
    REMOVE = 18
    RENAME = 19
    TREE = 20
    RELIEVE = 21
    OK = 64
    FAILED = 65
    DATA = 66
    END = 67
    OUTPUT = 68
    EXITED = 69
    CREDIT = 70
    STARTED = 71


FROM_GUEST = frozenset(kind for kind in FrameKind if kind >= FrameKind.OK)


class ExecFlag(IntFlag):
    STREAM = 1
    STDIN = 2
    WINDOW = 4
    TERMINAL = 8


class ExitHow(IntEnum):
    CODE = 0
    SIGNAL = 1
    TIMEOUT = 2
    NOT_STARTED = 3


class ProtocolError(SandboxError):
    """The guest sent what the protocol does not allow."""


@dataclass(frozen=True)
class Frame:
    kind: FrameKind
    channel: int
    payload: bytes


def encode(kind: FrameKind, channel: int, payload: bytes = b"") -> bytes:
    """One frame as it goes over the wire."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} fit")
    return _HEADER.pack(len(payload), kind, channel) + payload


class FrameParser:
    """Feed it bytes as they come; it gives back whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Raises ProtocolError on a length or kind that no agent of ours would send."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        while len(self._buffer) - at >= _HEADER.size:
            length, kind, channel = _HEADER.unpack_from(self._buffer, at)
            if length > MAX_PAYLOAD_BYTES:
                raise ProtocolError(f"guest announced a frame of {length} bytes")
            if kind not in FROM_GUEST:
                raise ProtocolError(f"guest sent a frame of kind {kind}")
            end = at + _HEADER.size + length
            if len(self._buffer) < end:
                break
            payload = bytes(self._buffer[at + _HEADER.size : end])
            frames.append(Frame(FrameKind(kind), channel, payload))
            at = end
        del self._buffer[:at]
        return frames


class PayloadReader:
    """A cursor over one payload. Raises ProtocolError past the end."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._payload) - self._at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise ProtocolError(f"guest payload ends {length - self.left} bytes early")
        self._at += length
        return self._payload[self._at - length : self._at]

    def u8(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self) -> bytes:
        return self.take(self.u32())


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(value: bytes) -> bytes:
    """u32 length and the bytes. Raises ValueError on NUL, which no path or argument can hold."""
    if b"\0" in value:
        raise ValueError("an argument, path or variable holds a NUL byte")
    return u32(len(value)) + value


def strings(values: Iterable[bytes]) -> bytes:
    encoded = [string(value) for value in values]
    return u32(len(encoded)) + b"".join(encoded)
