"""QEMU's control connection (QMP): one JSON object a line, answers in order, events in between."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from journeyman.types.failure import SandboxError

MAX_LINE_BYTES = 1 << 20
_ANSWER_S = 60.0
_UNIX = (socket.AF_UNIX, socket.SOCK_STREAM)

Event = dict[str, Any]


class Monitor:
    """One connection for the life of one QEMU process. What it sends is not trusted: a line that
    is no QMP ends the connection, and with it every waiting call."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_event: Callable[[Event], None],
    ) -> None:
        """Over a connected unix socket."""
        self.name = name
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._awaited: list[tuple[Callable[[Event], bool], asyncio.Future[Event]]] = []
        self._number = 0
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pump = asyncio.create_task(self._receive(), name=f"monitor of {name}")

    async def greeted(self, timeout_s: float) -> None:
        """Wait until QEMU is up. Raises SandboxError when it ends instead."""
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(self._greeted)

    async def execute(self, command: str, timeout_s: float = _ANSWER_S, **arguments: Any) -> Any:
        """Raises SandboxError with QEMU's own words, or when it ends or does not answer."""
        answer = self.post(command, **arguments)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise SandboxError(
                f"QEMU of {self.name} did not answer {command!r} within {timeout_s:g} s"
            ) from None

    def post(self, command: str, **arguments: Any) -> asyncio.Future[Any]:
        """Send without waiting; the answer comes later."""
        self._number += 1
        answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        if self._pump.done():
            answer.set_exception(self._ended())
            return answer
        self._answers[self._number] = answer
        # QMP spells with dashes what Python cannot.
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        message = {"execute": command, "arguments": named, "id": self._number}
        self._writer.write(json.dumps(message).encode() + b"\n")
        return answer

    async def give(self, name: str, descriptor: int) -> None:
        """Let QEMU have an open descriptor under a name. Raises SandboxError."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        message = {"execute": "getfd", "arguments": {"fdname": name}, "id": self._number}
        transport = self._writer.transport
        transport.set_write_buffer_limits(0)
        try:
            await self._writer.drain()  # a descriptor must not overtake a command
            with socket.fromfd(transport.get_extra_info("socket").fileno(), *_UNIX) as out:
                socket.send_fds(out, [json.dumps(message).encode() + b"\n"], [descriptor])
        except OSError:
            raise self._ended() from None
        await answer

    def expect(self, wanted: Callable[[Event], bool]) -> asyncio.Future[Event]:
        """The next event that is `wanted`; ask before sending what causes it."""
        event: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        event.add_done_callback(_retrieve)
        self._awaited.append((wanted, event))
        return event

    def close(self) -> None:
        """Idempotent."""
        self._pump.cancel()
        self._writer.close()

    def _ended(self) -> SandboxError:
        return SandboxError(f"QEMU of {self.name} has ended")

    async def _receive(self) -> None:
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except (OSError, ValueError, TypeError, AttributeError):
            return
        finally:
            self._end()

    def _end(self) -> None:
        waiting: list[asyncio.Future[Any]] = [self._greeted, *self._answers.values()]
        for future in (*waiting, *(event for _, event in self._awaited)):
            if not future.done():
                future.set_exception(self._ended())
        _retrieve(self._greeted)

    def _take(self, message: dict[str, Any]) -> None:
        if "QMP" in message and not self._greeted.done():
            self._greeted.set_result(None)
        elif "event" in message:
            self._notice(message)
        elif answer := self._answers.pop(message.get("id", 0), None):
            if answer.done():
                return
            if "error" in message:
                text = str(message["error"].get("desc", "no reason given"))[:2000]
                answer.set_exception(SandboxError(f"QEMU of {self.name}: {text}"))
            else:
                answer.set_result(message.get("return"))

    def _notice(self, event: Event) -> None:
        for item in list(self._awaited):
            wanted, future = item
            if future.done() or wanted(event):
                self._awaited.remove(item)
                if not future.done():
                    future.set_result(event)
        self._on_event(event)


def _retrieve(future: "asyncio.Future[Any]") -> None:
    """Nobody may be waiting: the error is told by whatever is called next."""
    if future.done() and not future.cancelled():
        future.exception()
