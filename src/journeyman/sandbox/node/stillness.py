"""Letting a sandbox stand still while nobody talks to it.

An idle gVisor kernel takes 1.5 to 7% of a core (its timers tick every millisecond or two): with
a hundred episodes that wait for the model, all of a small machine. A stopped process takes none,
and to stop and continue one costs microseconds.
"""

import asyncio
import signal
from contextlib import suppress

_LINGER_S = 0.05
"""Calls often follow each other; only then is it stopped."""


class Stillness:
    """Stops one process between `wake` and the next `wake`. Signals go through its descriptor,
    which cannot hit a recycled process id."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._pending: asyncio.TimerHandle | None = None
        self._stopped = False

    def wake(self) -> None:
        """Somebody is about to talk to it."""
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None
        if self._stopped:
            self._stopped = False
            self._send(signal.SIGCONT)

    def rest(self) -> None:
        """Nobody does any more."""
        self._pending = asyncio.get_running_loop().call_later(_LINGER_S, self._stop)

    def close(self) -> None:
        """The process is about to be killed, and its descriptor closed."""
        if self._pending is not None:
            self._pending.cancel()
        self._pidfd = -1

    def _stop(self) -> None:
        self._pending = None
        self._stopped = True
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
