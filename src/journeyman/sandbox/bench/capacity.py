"""How many sandboxes this machine holds at once."""

import asyncio
from collections.abc import Callable

from journeyman.sandbox.bench.load import default_environment, run_true
from journeyman.sandbox.client import RemoteSandbox, SandboxClient
from journeyman.types.failure import SandboxError
from journeyman.types.value import Value

_AT_ONCE = 4
_LEASE_S = 3600.0


class Capacity(Value):
    """Hibernated sandboxes on disk, and running ones that all answered while they lay there."""

    hibernated: int
    active: int


async def measure_capacity(
    client: SandboxClient, hibernated: int, active: int, advance: Callable[[], None]
) -> Capacity:
    """Tries for the numbers given; returns how far it came. Of the hibernated ones the first and
    the last are woken at the end, to see that they still are what they were."""
    environment = await default_environment(client)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(sleeps: bool) -> RemoteSandbox | None:
        async with gate:
            try:
                sandbox = await client.create(environment, lease_s=_LEASE_S)
                await run_true(sandbox)
                if sleeps:
                    await sandbox.write_file("/root/name", sandbox.id.encode())
                    await sandbox.hibernate()
            except SandboxError:
                return None
            advance()
            return sandbox

    asleep = await asyncio.gather(*(one(True) for _ in range(hibernated)))
    awake = await asyncio.gather(*(one(False) for _ in range(active)))
    answers = await asyncio.gather(*(_answers(sandbox) for sandbox in awake if sandbox))
    sleepers = [sandbox for sandbox in asleep if sandbox]
    for sandbox in sleepers[:1] + sleepers[-1:]:
        if await sandbox.read_file("/root/name") != sandbox.id.encode():
            raise SandboxError(f"sandbox {sandbox.id} woke up with another's files")
    for sandbox in (*sleepers, *(sandbox for sandbox in awake if sandbox)):
        await sandbox.close()
    return Capacity(hibernated=len(sleepers), active=sum(answers))


async def _answers(sandbox: RemoteSandbox) -> bool:
    try:
        await run_true(sandbox)
    except SandboxError:
        return False
    return True
