"""What a process in a guest says, and to whom: any number of listeners, bounded for each."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

Stream = Literal["stdout", "stderr", "terminal"]
PENDING_BYTES = 256 << 10
"""So much may wait for a listener before the process has to."""
KEPT_BYTES = 1 << 20
"""So much is kept for a listener who comes later; the oldest goes first."""


@dataclass(frozen=True)
class Output:
    stream: Stream
    data: bytes


@dataclass(frozen=True)
class Missed:
    """So many bytes came and went while nobody listened."""

    num_bytes: int


@dataclass(frozen=True)
class Ended:
    """`exit_code` is None when it was ended by `signal` or by its time-out. `error` says why
    its end is not known: the sandbox is gone."""

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    error: str = ""


Event = Output | Missed | Ended


class Listener:
    """One reader of a process's events."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._pending_bytes = 0
        self._changed = asyncio.Event()
        self.has_room = asyncio.Event()
        self.has_room.set()

    def put(self, event: Event) -> None:
        self._events.append(event)
        if isinstance(event, Output):
            self._pending_bytes += len(event.data)
            if self._pending_bytes >= PENDING_BYTES:
                self.has_room.clear()
        self._changed.set()

    def close(self) -> None:
        """It reads no more: nobody need wait for it."""
        self.has_room.set()

    async def events(self) -> AsyncIterator[Event]:
        """Up to and with `Ended`."""
        while True:
            while not self._events:
                self._changed.clear()
                await self._changed.wait()
            event = self._events.popleft()
            if isinstance(event, Output):
                self._pending_bytes -= len(event.data)
                if self._pending_bytes < PENDING_BYTES:
                    self.has_room.set()
            yield event
            if isinstance(event, Ended):
                return


class Broadcast:
    """Hands events to every listener; keeps what comes while there is none."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._kept: deque[Output] = deque()
        self._kept_bytes = 0
        self._missed_bytes = 0
        self.ended: Ended | None = None

    def put(self, event: Event) -> None:
        if isinstance(event, Ended):
            self.ended = event
        for listener in self._listeners:
            listener.put(event)
        if not self._listeners and isinstance(event, Output):
            self._keep(event)

    def _keep(self, output: Output) -> None:
        self._kept.append(output)
        self._kept_bytes += len(output.data)
        while self._kept_bytes > KEPT_BYTES:
            oldest = len(self._kept.popleft().data)
            self._kept_bytes -= oldest
            self._missed_bytes += oldest

    def listen(self, replay: bool) -> Listener:
        """From now on, and with `replay` what nobody has heard yet before that."""
        listener = Listener()
        if replay:
            if self._missed_bytes:
                listener.put(Missed(self._missed_bytes))
            for output in self._kept:
                listener.put(output)
            self._kept.clear()
            self._kept_bytes = self._missed_bytes = 0
        if self.ended:
            listener.put(self.ended)
        else:
            self._listeners.append(listener)
        return listener

    def forget(self, listener: Listener) -> None:
        listener.close()
        if listener in self._listeners:
            self._listeners.remove(listener)

    async def room(self) -> None:
        """Until every listener can take more."""
        for listener in list(self._listeners):
            await listener.has_room.wait()
