"""Many callers at once, or one that changes what they all stand on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class SharedLock:
    """`shared` holders run together; an `exclusive` one waits for them and keeps new ones out."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._shared = 0
        self._exclusive = False

    @property
    def busy(self) -> bool:
        return self._shared > 0 or self._exclusive

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        await self._until(lambda: not self._exclusive)
        self._shared += 1
        try:
            yield
        finally:
            self._shared -= 1
            self._wake()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        await self._until(lambda: not self._exclusive)
        self._exclusive = True
        try:
            await self._until(lambda: not self._shared)
            yield
        finally:
            self._exclusive = False
            self._wake()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _wake(self) -> None:
        """Synchronous, so that a cancelled holder cannot fail to wake the others."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
