"""Many short lives with sudden deaths, then a search for what they left."""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from journeyman.sandbox.bench.load import default_environment, run_true
from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.node.cgroups import ControlGroups
from journeyman.types.failure import SandboxError
from journeyman.types.sandbox import Environment
from journeyman.types.value import Value

_AT_ONCE = 4
_PATIENCE_S = 30.0


class Lifecycles(Value):
    """`n` lives were begun; of their processes, control groups, mounts and directories `leaked`
    were found at the end."""

    n: int
    leaked: int


async def measure_lifecycles(
    client: SandboxClient, state: Path, count: int, seed: int, advance: Callable[[], None]
) -> Lifecycles:
    """`state` is the service's own directory. A third of the lives ends by a SIGKILL to the
    engine, at a random moment; the others are closed, some of them hibernated before."""
    environment = await default_environment(client)
    gate = asyncio.Semaphore(_AT_ONCE)
    lives: list[str] = []

    async def one(number: int) -> None:
        async with gate:
            lives.append(await _live(client, environment, random.Random(seed + number)))
            advance()

    await asyncio.gather(*(one(number) for number in range(count)))
    for _ in range(int(_PATIENCE_S / 0.5)):  # the service collects in the background
        if not (left := leftovers(lives, state)):
            break
        await asyncio.sleep(0.5)
    return Lifecycles(n=len(lives), leaked=len(left))


async def _live(client: SandboxClient, environment: Environment, chance: random.Random) -> str:
    sandbox = await client.create(environment)
    try:
        if chance.random() < 1 / 3:
            work = asyncio.create_task(sandbox.exec(["sleep", "1"]))
            await asyncio.sleep(chance.random() / 4)
            _kill_engine(sandbox.id)
            with suppress(SandboxError):
                await work
            return sandbox.id
        await run_true(sandbox)
        if chance.random() < 1 / 3:
            await sandbox.hibernate()
            if chance.random() < 1 / 2:
                await run_true(sandbox)
        return sandbox.id
    finally:
        await sandbox.close()


def _kill_engine(sandbox_id: str) -> None:
    for pid in ControlGroups().members(sandbox_id):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def leftovers(lives: list[str], state: Path) -> list[str]:
    """Everything that still bears the name of one of `lives`: processes, control groups, mounts,
    directories."""
    groups = ControlGroups()
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    found = [f"mount of {life}" for life in lives if life in mounts]
    for life in lives:
        found += [f"process {pid} of {life}" for pid in groups.members(life)]
        found += [str(path) for path in groups.paths(life) if path.exists()]
        if (directory := state / "sandboxes" / life).exists():
            found.append(str(directory))
    return found
