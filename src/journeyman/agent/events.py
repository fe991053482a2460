"""The append-only log of a session. Everything a client sees is read from it."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from journeyman.types import Value


class Event(Value):
    """`number` counts from 1 within the session; it is the id of the event stream."""

    number: int
    type: str
    data: dict[str, Any]
    at: float
    """Unix time, seconds."""


class EventLog(Protocol):
    """Where events are kept. Each call is complete when it returns."""

    def append(self, session: str, type: str, data: dict[str, Any]) -> Event:
        """Add one event with the next number of that session."""
        ...

    def after(self, session: str, number: int) -> Sequence[Event]:
        """All events of the session with a greater number, in order."""
        ...

    def forget(self, session: str) -> None:
        """The session is over and its record is elsewhere."""
        ...


class MemoryEventLog:
    """Events for as long as the process lives."""

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}

    def append(self, session: str, type: str, data: dict[str, Any]) -> Event:
        """As EventLog.append."""
        events = self._events.setdefault(session, [])
        event = Event(number=len(events) + 1, type=type, data=data, at=time.time())
        events.append(event)
        return event

    def after(self, session: str, number: int) -> Sequence[Event]:
        """As EventLog.after."""
        return self._events.get(session, [])[number:]

    def forget(self, session: str) -> None:
        """As EventLog.forget."""
        self._events.pop(session, None)
