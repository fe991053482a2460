"""One promise and how it is tried."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from journeyman.sandbox.client.client import SandboxClient
from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.types.sandbox import Environment

_LEASE_S = 600.0


class Violation(Exception):
    """The driver did not do what it promises; the text says what was seen."""


def require(holds: bool, seen: object) -> None:
    """Raises Violation unless it holds."""
    if not holds:
        raise Violation(str(seen))


def equal(seen: object, right: object) -> None:
    """Raises Violation with both values unless they are equal."""
    require(seen == right, f"{seen!r} instead of {right!r}")


@dataclass
class Bench:
    """A running service with the driver under test, and its default template."""

    client: SandboxClient
    template: str
    state: Path
    """The service's own directory, for cases that harm what lies there."""
    opened: list[RemoteSandbox] = field(default_factory=list)

    async def create(self, files: Mapping[str, bytes] | None = None) -> RemoteSandbox:
        """A sandbox that `close` closes."""
        environment = Environment(template=self.template, files=files or {})
        return self.own(await self.client.create(environment, lease_s=_LEASE_S))

    def own(self, sandbox: RemoteSandbox) -> RemoteSandbox:
        self.opened.append(sandbox)
        return sandbox

    async def close(self) -> None:
        while self.opened:
            await self.opened.pop().close()

    @asynccontextmanager
    async def cleanly(self) -> AsyncIterator["Bench"]:
        """For one case: what it made is closed at its end."""
        try:
            yield self
        finally:
            await self.close()


Trial = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """`needs` are the abilities without which a driver cannot promise this."""

    name: str
    promise: str
    needs: frozenset[str]
    trial: Trial


CASES: dict[str, Case] = {}
"""In the order of their modules and of their places there."""


def case(promise: str, *needs: str) -> Callable[[Trial], Trial]:
    """Register a trial under the name of its function."""

    def register(trial: Trial) -> Trial:
        name = getattr(trial, "__name__", "")
        if name in CASES:
            raise ValueError(f"two conformance cases are called {name!r}")
        CASES[name] = Case(name, promise, frozenset(needs), trial)
        return trial

    return register
