"""What one driver takes for the lives of a sandbox that has work in it, as a client sees it.

    python -m journeyman.sandbox.bench_driver --driver qemu

From a snapshot of a sandbox with 64 MB of dirty memory and 100 MB of changed files; nothing is
forked in advance and every snapshot is synced. Prints one JSON object; times in milliseconds.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path

from journeyman.sandbox.client.client import SandboxClient
from journeyman.sandbox.client.remote import RemoteSandbox
from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.node.cgroups import ControlGroups
from journeyman.sandbox.service.launch import running_service
from journeyman.types.sandbox import Environment

_WORK = b"""
import os, time
block = os.urandom(1 << 20)
data = bytearray(64 << 20)
turn = 0
while True:
    turn += 1
    stamped = block[:-8] + turn.to_bytes(8, "little")
    for number in range(64):
        data[number << 20 : (number + 1) << 20] = stamped
    for number in range(100):
        with open(f"/root/file{number}", "wb") as file:
            file.write(stamped)
    open("/tmp/ready", "w").write("1")
    while os.path.exists("/tmp/ready"):
        time.sleep(0.05)
"""
"""Makes 64 MB of memory and 100 MB of files dirty, again whenever /tmp/ready is removed."""
_WAIT = "while ! test -s /tmp/ready; do sleep 0.1; done"
_SETTLE_S = 3.0

Figures = dict[str, float]


def _summary(times_s: Sequence[float]) -> Figures:
    """P50, P95 and number, in milliseconds."""
    ordered = sorted(1000 * one for one in times_s)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return {"p50": round(statistics.median(ordered), 1), "p95": round(p95, 1), "n": len(ordered)}


async def _timed(*calls: Awaitable[object]) -> float:
    began = time.monotonic()
    for call in calls:
        await call
    return time.monotonic() - began


def private_mb(sandbox_id: str) -> float:
    """Memory that only the sandbox's processes have, in megabytes."""
    total = 0
    for pid in ControlGroups().members(sandbox_id):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))
    return round(total / 1024, 1)


async def _with_work(client: SandboxClient, template: str) -> RemoteSandbox:
    environment = Environment(template=template, files={"/root/work.py": _WORK})
    sandbox = await client.create(environment, lease_s=3600)
    start = f"python3 /root/work.py >/dev/null 2>&1 & {_WAIT}"
    await sandbox.exec(["sh", "-c", start], timeout_s=300)
    return sandbox


async def measure_driver(driver: str, rounds: int = 10) -> dict[str, Figures | float]:
    """Raises UserError when the driver cannot run here."""
    fork, hibernate, resume, execute = [], [], [], []
    async with running_service(driver) as url, SandboxClient(url) as client:
        parent = await _with_work(client, await client.build_template(TemplateSpec()))
        for _ in range(rounds):
            await parent.exec(["sh", "-c", f"rm /tmp/ready; {_WAIT}"], timeout_s=300)
            hibernate.append(await _timed(parent.hibernate()))
            resume.append(await _timed(parent.exec(["true"])))
            execute += [await _timed(parent.exec(["true"])) for _ in range(5)]
        await parent.hibernate()
        for number in range(rounds):
            began = time.monotonic()
            child = await parent.fork()
            await child.exec(["true"])
            fork.append(time.monotonic() - began)
            if number == rounds - 1:
                await asyncio.sleep(_SETTLE_S)
                private = private_mb(child.id)
            await child.close()
    return {
        "fork_exec_ms": _summary(fork),
        "hibernate_ms": _summary(hibernate),
        "resume_exec_ms": _summary(resume),
        "exec_ms": _summary(execute),
        "fork_private_mb": private,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="journeyman.sandbox.bench_driver")
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure_driver(options.driver, options.rounds))))


if __name__ == "__main__":
    main()
