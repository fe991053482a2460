"""Fork, hibernation, resumption and commands of one driver, end to end through the client."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from journeyman.sandbox.bench.load import default_environment, run_true, work_again, worked_in
from journeyman.sandbox.bench.quantiles import Quantiles, quantiles, seconds_of
from journeyman.sandbox.client import RemoteSandbox, SandboxClient
from journeyman.sandbox.node.cgroups import ControlGroups
from journeyman.types.failure import SandboxError
from journeyman.types.value import Value

_SETTLE_S = 0.5
"""What a fresh fork still does by itself, before its memory is looked at."""


class Latency(Value):
    """`fork_exec_ms`: from a snapshot on disk of a sandbox that was worked in (`load.py`), to
    the end of `true` in the fork. `hibernate_ms`: until that state is synced to disk.
    `resume_exec_ms`: the end of `true` in a hibernated sandbox. `exec_ms`: `true`, round trip.
    `fork_private_mb`: memory that an idle fork of that snapshot does not share with anybody;
    `idle_fork_private_mb`: the same of a fork of the bare template. None where unknown."""

    fork_exec_ms: Quantiles
    hibernate_ms: Quantiles
    resume_exec_ms: Quantiles
    exec_ms: Quantiles
    fork_private_mb: float | None
    idle_fork_private_mb: float | None


async def measure_latency(
    client: SandboxClient, times: int, advance: Callable[[], None]
) -> Latency:
    """Each but `exec_ms` over `times` calls, one after the other."""
    environment = await default_environment(client)
    idle = await client.create(environment)
    idle_mb = private_mb(idle.id)
    await idle.close()
    sandbox = await worked_in(client, environment)
    await run_true(sandbox)
    execs = [await seconds_of(lambda: run_true(sandbox)) for _ in range(10 * times)]
    hibernations, resumptions = [], []
    for _ in range(times):
        await work_again(sandbox)
        hibernations.append(await seconds_of(sandbox.hibernate))
        resumptions.append(await seconds_of(lambda: run_true(sandbox)))
        advance()
    await work_again(sandbox)
    await sandbox.hibernate()
    forks, private = [], None
    for _ in range(times):
        seconds, private = await _fork(sandbox)
        forks.append(seconds)
        advance()
    await sandbox.close()
    return Latency(
        fork_exec_ms=quantiles(forks),
        hibernate_ms=quantiles(hibernations),
        resume_exec_ms=quantiles(resumptions),
        exec_ms=quantiles(execs),
        fork_private_mb=private,
        idle_fork_private_mb=idle_mb,
    )


async def _fork(parent: RemoteSandbox) -> tuple[float, float | None]:
    children: list[RemoteSandbox] = []

    async def fork_and_run() -> None:
        children.append(await parent.fork())
        await run_true(children[0])

    seconds = await seconds_of(fork_and_run)
    await asyncio.sleep(_SETTLE_S)
    private = private_mb(children[0].id)
    await children[0].close()
    return seconds, private


def private_mb(sandbox_id: str) -> float | None:
    """MiB of a sandbox's processes that no other process maps; None without control groups."""
    members = ControlGroups().members(sandbox_id) if os.geteuid() == 0 else set()
    if not members:
        return None
    total = 0
    for pid in members:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue  # one of the engine's helpers, ended meanwhile
        total += sum(_kilobytes(text, field) for field in ("Private_Clean", "Private_Dirty"))
    if not total:
        raise SandboxError(f"no process of sandbox {sandbox_id} could be read")
    return round(total / 1024, 1)


def _kilobytes(text: str, field: str) -> int:
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field))
