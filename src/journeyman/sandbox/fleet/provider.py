"""Where hosts come from."""

from typing import Literal, Protocol

from journeyman.types.failure import SandboxError, UserError
from journeyman.types.value import Value

HostState = Literal["starting", "running", "stopping"]


class Host(Value):
    """A machine, whether or not a node has registered from it. The node's id is the host's."""

    id: str
    address: str = ""
    """Where its sandbox service answers; empty while nobody knows."""
    state: HostState
    age_s: float
    """Since it was started."""


class HostShortage(SandboxError):
    """The provider cannot give more hosts now. Try again later."""


class HostProvider(Protocol):
    """Calls block, for seconds where a cloud answers: from a coroutine use `asyncio.to_thread`.

    Raises HostShortage where there is nothing to be had, UserError where something has to be
    mended by a person, such as credentials.
    """

    def hosts(self) -> list[Host]:
        """Every host of this fleet and no other."""
        ...

    def start(self, count: int) -> list[Host]:
        """Start up to `count` hosts, at least one. They register as nodes by themselves."""
        ...

    def terminate(self, host_id: str) -> None:
        """End a host for good. Idempotent. Raises UserError for one that is not of this fleet."""
        ...


class StaticHosts:
    """A list of machines that somebody else runs: nothing is started and nothing ended."""

    def __init__(self, addresses: dict[str, str]) -> None:
        """`addresses`: host id → where its sandbox service answers."""
        self._addresses = dict(addresses)

    def hosts(self) -> list[Host]:
        return [
            Host(id=name, address=address, state="running", age_s=float("inf"))
            for name, address in self._addresses.items()
        ]

    def start(self, count: int) -> list[Host]:
        raise HostShortage(
            f"{count} more hosts are wanted, and the list of hosts is fixed",
            "Add hosts to the list, or use a provider that can start some.",
        )

    def terminate(self, host_id: str) -> None:
        raise UserError(
            f"host {host_id} is on a fixed list: it is not this fleet's to end",
            "Take it off the list and end it yourself.",
        )
