"""How long a fork takes to its first command, and what it costs, beside busy cores.

    python -m journeyman.sandbox.bench.forks --forks 500 --busy 2

Prints one JSON object. CPU seconds are of everything: service, engine, guest, teardown.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from journeyman.sandbox.client import SandboxClient, TemplateSpec
from journeyman.sandbox.service.launch import running_service
from journeyman.types.sandbox import Environment

_CPUACCT = Path("/sys/fs/cgroup/cpuacct")
_BURN = "while True: sum(i * i for i in range(10000))"


@contextmanager
def _busy_cores(count: int) -> Iterator[None]:
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@contextmanager
def _cpu_clock() -> Iterator[Path | None]:
    """A control group that this process and what it starts from here on is accounted in."""
    if not (_CPUACCT / "cgroup.procs").exists() or os.geteuid() != 0:
        yield None
        return
    group = _CPUACCT / f"journeyman-bench-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    try:
        yield group / "cpuacct.usage"
    finally:
        (_CPUACCT / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        for _ in range(100):
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.1)
            else:
                break


async def _one(client: SandboxClient, environment: Environment) -> tuple[float, float]:
    began = time.monotonic()
    sandbox = await client.create(environment)
    created = time.monotonic() - began
    result = await sandbox.exec(["true"])
    first_exec = time.monotonic() - began
    if result.exit_code != 0:
        raise RuntimeError(f"'true' ended with {result}")
    await sandbox.close()
    return created, first_exec


async def measure(forks: int, at_once: int, driver: str = "auto") -> dict[str, float]:
    """Fork the default template `forks` times, `at_once` side by side. Times in seconds."""
    with _cpu_clock() as usage:
        async with running_service(driver) as url, SandboxClient(url) as client:
            environment = Environment(template=await client.build_template(TemplateSpec()))
            await _one(client, environment)
            before = int(usage.read_text(encoding="ascii")) if usage else 0
            began = time.monotonic()
            gate = asyncio.Semaphore(at_once)

            async def gated() -> tuple[float, float]:
                async with gate:
                    return await _one(client, environment)

            times = await asyncio.gather(*(gated() for _ in range(forks)))
            wall = time.monotonic() - began
            await asyncio.sleep(2)  # the collector's part belongs to the bill
            after = int(usage.read_text(encoding="ascii")) if usage else 0
    created, first = (sorted(column) for column in zip(*times, strict=True))
    return {
        "forks": forks,
        "at_once": at_once,
        "create_p50_s": statistics.median(created),
        "first_exec_p50_s": statistics.median(first),
        "first_exec_p95_s": first[int(0.95 * (forks - 1))],
        "first_exec_max_s": first[-1],
        "cpu_s_per_fork": (after - before) / 1e9 / forks,
        "forks_per_s": forks / wall,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="journeyman.sandbox.bench.forks")
    parser.add_argument("--forks", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="cores kept busy beside it")
    parser.add_argument("--driver", default="auto")
    options = parser.parse_args()
    with _busy_cores(options.busy):
        figures = asyncio.run(measure(options.forks, options.at_once, options.driver))
    print(json.dumps({**figures, "busy_cores": options.busy}))


if __name__ == "__main__":
    main()
