"""The sandbox benchmark in small, and a thousand lives with sudden deaths in `make soak`."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from journeyman.sandbox.bench.lifecycles import measure_lifecycles
from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.service.launch import running_service

ONE_DRIVER = {
    "fork_exec_ms",
    "hibernate_ms",
    "resume_exec_ms",
    "exec_ms",
    "fork_private_mb",
    "idle_fork_private_mb",
    "isolation",
}


@pytest.mark.parametrize("count", [9, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_sudden_deaths_leave_nothing(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with running_service("gvisor", tmp_path) as url, SandboxClient(url) as client:
            lived = await measure_lifecycles(client, tmp_path, count, 7, lambda: None)
        assert (lived.n, lived.leaked) == (count, 0)

    asyncio.run(main())


def test_the_command_prints_one_object() -> None:
    command = (sys.executable, "-m", "journeyman.cli", "bench", "sandbox", "--quick", "--json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures["drivers"]["gvisor"]) == ONE_DRIVER
    calls = figures["drivers"]["gvisor"]
    assert all(0 < calls[name]["p50"] <= calls[name]["p95"] for name in calls if "_ms" in name)
    # A fork that was worked in holds at least the pages its process wrote.
    assert calls["fork_private_mb"] > 64 > calls["idle_fork_private_mb"]
    assert figures["capacity"] == {"hibernated": 8, "active": 4}
    assert figures["lifecycles"] == {"n": 10, "leaked": 0}
