"""Processes of a guest that outlive the call that started them.

A process belongs to its sandbox, not to a link: after hibernation, and in a fork, the guest brings
it along under the number of its old channel, and `ProcessTable.adopt` takes that up again.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from journeyman.sandbox.node.commands import kill_command
from journeyman.sandbox.node.link import Channel, GuestFileError, GuestLink
from journeyman.sandbox.node.process_events import Broadcast, Ended, Event, Output, Stream
from journeyman.sandbox.wire.frames import (
    CHUNK_BYTES,
    OUTPUT_WINDOW_BYTES,
    STDIN_WINDOW_BYTES,
    ExecFlag,
    ExitHow,
    Frame,
    FrameKind,
    PayloadReader,
    string,
    strings,
    u32,
)
from journeyman.types.failure import SandboxError, SandboxGone

_FOREVER = float("inf")
_START_S = 60.0


@dataclass(frozen=True)
class TerminalSize:
    rows: int
    columns: int

    def payload(self) -> bytes:
        return u32(min(self.rows, 0xFFFF)) + u32(min(self.columns, 0xFFFF))


@dataclass(frozen=True)
class ProcessSpec:
    """What to start. An empty `cwd` is the user's home; HOME, USER, LOGNAME and SHELL are the
    user's unless `env` has them. With a `terminal`, stdin, stdout and stderr are one."""

    argv: Sequence[str]
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    stdin: bool = False
    terminal: TerminalSize | None = None
    timeout_s: float = 0.0
    """0 is without an end."""
    tag: str = ""

    def payload(self) -> bytes:
        flags = ExecFlag.STREAM | ExecFlag.WINDOW
        flags |= ExecFlag.STDIN if self.stdin else ExecFlag(0)
        flags |= ExecFlag.TERMINAL if self.terminal else ExecFlag(0)
        variables = (os.fsencode(f"{name}={value}") for name, value in self.env.items())
        return (
            u32(flags)
            + u32(round(self.timeout_s * 1000))
            + u32(0)  # nothing is kept in the guest: output leaves as it comes
            + (self.terminal or TerminalSize(0, 0)).payload()
            + string(self.user.encode())
            + string(os.fsencode(self.cwd))
            + strings(os.fsencode(argument) for argument in self.argv)
            + strings(variables)
        )


class GuestProcess:
    """A started process. `pid` is the guest's number of its main process."""

    def __init__(self, spec: ProcessSpec, link: GuestLink, channel: Channel, pid: int) -> None:
        self.spec = spec
        self.pid = pid
        self.number = channel.number
        self._link = link
        self._channel = channel
        self._broadcast = Broadcast()
        self._ungranted = OUTPUT_WINDOW_BYTES
        self._input_room = STDIN_WINDOW_BYTES
        self._input_changed = asyncio.Event()
        self._input_turn = asyncio.Lock()
        self._pump = asyncio.create_task(self._receive(), name=f"process {pid} of {link.name}")

    @property
    def ended(self) -> Ended | None:
        """How, once it has."""
        return self._broadcast.ended

    async def events(self, replay: bool = False) -> AsyncIterator[Event]:
        """Everything from now on, up to and with `Ended`; with `replay` first what came while
        nobody listened, once. A listener who does not read holds the process up."""
        listener = self._broadcast.listen(replay)
        try:
            async for event in listener.events():
                yield event
        finally:
            self._broadcast.forget(listener)

    async def send_input(self, data: bytes) -> None:
        """Returns when the guest has room for all of it. Raises BrokenPipeError when the process
        has ended, SandboxError when it takes no input."""
        if not (self.spec.stdin or self.spec.terminal):
            raise SandboxError(f"process {self.pid} was started without stdin", "Ask for it.")
        async with self._input_turn:
            at = 0
            while at < len(data):
                while not self._input_room and not self.ended:
                    self._input_changed.clear()
                    await self._input_changed.wait()
                if self.ended:
                    raise BrokenPipeError(errno.EPIPE, f"process {self.pid} has ended")
                piece = data[at : at + min(self._input_room, CHUNK_BYTES)]
                self._input_room -= len(piece)
                at += len(piece)
                await self._channel.send(FrameKind.STDIN, piece)

    async def close_input(self) -> None:
        """It sees the end of its input."""
        async with self._input_turn:
            await self._channel.send(FrameKind.STDIN)

    async def resize(self, size: TerminalSize) -> None:
        """Programs on the terminal get SIGWINCH. Without a terminal nothing happens."""
        await self._channel.send(FrameKind.RESIZE, size.payload())

    async def signal(self, number: int) -> None:
        """To it and everything it started. A process that has ended is no error."""
        await kill_command(self._link, self.number, number)

    async def kill(self) -> None:
        """With its whole tree."""
        await kill_command(self._link, self.number)

    async def adopt(self, link: GuestLink) -> None:
        """It lives on in a guest that was restored."""
        self._pump.cancel()
        self._link = link
        self._channel = link.open_channel(self.number)
        self._pump = asyncio.create_task(self._receive(), name=f"process {self.pid}")
        await self.grant_again()

    async def grant_again(self) -> None:
        """A new epoch has begun: the guest holds all output until it is told that we listen."""
        self._ungranted = OUTPUT_WINDOW_BYTES
        await self._channel.send(FrameKind.GRANT, u32(OUTPUT_WINDOW_BYTES))

    def detach(self) -> None:
        """Its guest hibernates or is gone; whoever listens goes on waiting. What the guest had
        sent before is heard."""
        self._pump.cancel()
        for frame in self._channel.waiting():
            self._take(frame)
        self._link.close_channel(self._channel)

    def lose(self, why: str) -> None:
        """It will never be heard of again."""
        self.detach()
        if not self.ended:
            self._finish(Ended(error=why))

    async def _receive(self) -> None:
        try:
            while not self.ended:
                if taken := self._take(await self._channel.receive(_FOREVER)):
                    await self._broadcast.room()
                    self._ungranted += taken
                    await self._channel.send(FrameKind.GRANT, u32(taken))
        except SandboxGone:
            return  # hibernated or ended: its sandbox will have it adopted or lost
        except GuestFileError as error:
            self._finish(Ended(error=str(error)))

    def _take(self, frame: Frame) -> int:
        """Returns how many bytes of output it was, to be granted again once there is room."""
        if frame.kind is FrameKind.OUTPUT and len(frame.payload) > 1:
            data = frame.payload[1:]
            self._ungranted -= len(data)
            # A grant that was on its way when an epoch began counts twice, and no more than that.
            if self._ungranted < -OUTPUT_WINDOW_BYTES:
                raise self._link.break_off("it sent more output than was granted", tampered=True)
            self._broadcast.put(Output(self._stream(frame.payload[0]), data))
            return len(data)
        if frame.kind is FrameKind.CREDIT:
            self._input_room += PayloadReader(frame.payload).u32()
            self._input_room = min(self._input_room, STDIN_WINDOW_BYTES)
            self._input_changed.set()
        elif frame.kind is FrameKind.EXITED:
            end = PayloadReader(frame.payload)
            how, value = end.u8(), end.u32()
            self._finish(
                Ended(
                    exit_code=value if how == ExitHow.CODE else None,
                    signal=value if how == ExitHow.SIGNAL else None,
                    timed_out=how == ExitHow.TIMEOUT,
                )
            )
        return 0

    def _stream(self, number: int) -> Stream:
        if self.spec.terminal:
            return "terminal"
        return "stderr" if number & 1 else "stdout"

    def _finish(self, end: Ended) -> None:
        self._broadcast.put(end)
        self._input_changed.set()
        self._link.close_channel(self._channel)


class ProcessTable:
    """The processes of one sandbox, through all its links."""

    def __init__(self) -> None:
        self._processes: dict[int, GuestProcess] = {}
        self._inherited: dict[int, ProcessSpec] = {}

    async def start(self, link: GuestLink, spec: ProcessSpec) -> GuestProcess:
        """Raises SandboxError for a user the guest does not know and where no process can be
        started. A program or directory that is not there shows as exit code 127 or 126."""
        channel = link.open_channel()
        try:
            with link.awake():
                await channel.send(FrameKind.EXEC, spec.payload())
                pid = await _started(channel, spec)
        except BaseException:
            link.close_channel(channel)
            raise
        process = self._processes[pid] = GuestProcess(spec, link, channel, pid)
        return process

    def get(self, pid: int) -> GuestProcess | None:
        """Of those that have not ended."""
        self._forget_ended()
        return self._processes.get(pid)

    def list(self) -> list[GuestProcess]:
        """Those that have not ended, in the order of their start."""
        self._forget_ended()
        return sorted(self._processes.values(), key=lambda process: process.number)

    def inherit(self, parent: "ProcessTable") -> None:
        """What the parent of a fork knows of the processes that the fork will bring along."""
        self._inherited = {one.number: one.spec for one in parent.list()}

    def detach(self) -> None:
        """Before the guest hibernates."""
        for process in self._processes.values():
            process.detach()

    async def adopt(self, link: GuestLink) -> None:
        """After the guest was restored: takes up what it brought along, loses what it did not."""
        brought = {row.number: row for row in await _list_processes(link)}
        for pid, process in list(self._processes.items()):
            if process.number in brought:
                await process.adopt(link)
            else:
                process.lose("it is not in the state its sandbox was restored from")
                del self._processes[pid]
        known = {process.number for process in self._processes.values()}
        for row in brought.values():
            if row.number not in known:
                await self._take_in(link, row)

    async def grant_again(self) -> None:
        """After a snapshot of a sandbox that runs on."""
        for process in self.list():
            await process.grant_again()

    async def _take_in(self, link: GuestLink, row: "_Row") -> None:
        """One that this table never saw: of a fork's parent, or of an earlier life."""
        terminal = TerminalSize(0, 0) if row.flags & ExecFlag.TERMINAL else None
        stdin = bool(row.flags & ExecFlag.STDIN)
        unknown = ProcessSpec(argv=[row.label], terminal=terminal, stdin=stdin)
        spec = self._inherited.get(row.number, unknown)
        channel = link.open_channel(row.number)
        process = self._processes[row.pid] = GuestProcess(spec, link, channel, row.pid)
        await process.adopt(link)

    def lose(self, why: str) -> None:
        """The sandbox is gone for good."""
        for process in self._processes.values():
            process.lose(why)

    def _forget_ended(self) -> None:
        self._processes = {pid: one for pid, one in self._processes.items() if not one.ended}


async def _started(channel: Channel, spec: ProcessSpec) -> int:
    try:
        frame = await channel.receive(_START_S)
    except GuestFileError as error:
        if error.errno == errno.ENOENT:
            raise SandboxError(f"the guest has no user {spec.user!r}") from None
        raise SandboxError(
            f"the guest cannot start a process: {error.strerror}",
            "Its process or memory limit is reached: end some of its processes.",
        ) from None
    if frame.kind is not FrameKind.STARTED:
        raise SandboxError(
            "the guest cannot start a process",
            "Its process or memory limit is reached: end some of its processes.",
        )
    return PayloadReader(frame.payload).u32()


@dataclass(frozen=True)
class _Row:
    number: int
    flags: int
    pid: int
    label: str


async def _list_processes(link: GuestLink) -> list[_Row]:
    """Those with a window: others are calls of a link that is gone."""
    found = []
    with link.channel() as channel:
        await channel.send(FrameKind.LIST_EXECS)
        while (frame := await channel.receive()).kind is FrameKind.DATA:
            row = PayloadReader(frame.payload)
            number, _, ended, flags, pid = row.u32(), row.u32(), row.u8(), row.u32(), row.u32()
            label = row.string().decode("utf-8", "replace")
            if flags & ExecFlag.WINDOW and not ended:
                found.append(_Row(number, flags, pid, label))
    return found
