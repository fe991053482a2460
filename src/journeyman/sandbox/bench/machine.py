"""The whole benchmark: every driver that runs here, capacity, lives."""

import tempfile
from pathlib import Path
from typing import Any

from journeyman.observe import Progress
from journeyman.sandbox.bench.capacity import measure_capacity
from journeyman.sandbox.bench.latency import measure_latency
from journeyman.sandbox.bench.lifecycles import measure_lifecycles
from journeyman.sandbox.client import SandboxClient
from journeyman.sandbox.service.launch import running_service


async def bench_sandboxes(
    drivers: list[str], quick: bool, seed: int, progress: Progress
) -> dict[str, Any]:
    """What `journeyman bench sandbox --json` prints. Capacity and lives are the first driver's.

    Raises UserError for a driver that cannot run here.
    """
    times, hibernated, active, lives = (5, 8, 4, 10) if quick else (20, 200, 32, 100)
    figures: dict[str, Any] = {"drivers": {}}
    for driver in drivers:
        with progress.stage(f"calls of {driver}", 2 * times, "calls") as stage:
            async with running_service(driver) as url, SandboxClient(url) as client:
                latency = await measure_latency(client, times, stage.advance)
                health = await client.health()
        figures["drivers"][driver] = {**latency.model_dump(), "isolation": health.isolation}
    with tempfile.TemporaryDirectory(prefix="journeyman-bench-") as directory:
        state = Path(directory)
        async with running_service(drivers[0], state) as url, SandboxClient(url) as client:
            with progress.stage("capacity", hibernated + active, "sandboxes") as stage:
                capacity = await measure_capacity(client, hibernated, active, stage.advance)
            with progress.stage("lives", lives, "sandboxes") as stage:
                lived = await measure_lifecycles(client, state, lives, seed, stage.advance)
    return {**figures, "capacity": capacity.model_dump(), "lifecycles": lived.model_dump()}
