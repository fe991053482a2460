"""Who asks for sandboxes, and when: training runs in bursts, people one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from math import log
from random import Random

from journeyman.sandbox.fleet.placement import PlacementRequest, Spread

GIB = 1 << 30
GROUPS, GROUP_SIZE = 8, 64
STEP = GROUPS * GROUP_SIZE
"""Sandboxes that one step of reinforcement starts at once."""
MOST_OF_A_GROUP = 16
"""Of one group's sandboxes on one node."""
PEOPLE = 0.2
"""Share of the sandboxes that belong to people's sessions."""
STEP_S = 90.0
NUM_TEMPLATES = 50
EMULATED = 0.05
"""Share of training runs whose sandboxes need the driver that few nodes have."""


@dataclass(slots=True)
class Visitor:
    """One sandbox as it will really behave, which the scheduler does not know."""

    request: PlacementRequest
    arrives_at: float
    lifetime_s: float
    cpus_used: float
    """On average, while it lives."""
    memory_used_bytes: int
    snapshot: str
    """Its last snapshot, if it has one by the time its node is lost."""


def templates() -> list[str]:
    return [f"t-{number}" for number in range(NUM_TEMPLATES)]


def visitors(count: int, window_s: float, seed: int) -> Iterator[Visitor]:
    """`count` sandboxes in order of arrival, within about `window_s` seconds."""
    num_people = max(1, int(count * PEOPLE))
    num_training = count - num_people
    num_steps = -(-num_training // STEP)
    num_runs = max(1, round(num_steps * STEP_S / window_s))
    steps = _steps(num_steps, num_runs, window_s, Random(f"{seed} training"))
    left = num_training
    bursts = []
    for at, run, step in steps:
        bursts.append((at, run, step, min(STEP, left)))
        left -= bursts[-1][3]
    training = _training(bursts, Random(f"{seed} episodes"))
    people = _people(num_people, window_s, Random(f"{seed} people"))
    return merge(training, people, key=lambda visitor: visitor.arrives_at)


def _steps(
    num_steps: int, num_runs: int, window_s: float, random: Random
) -> list[tuple[float, int, int]]:
    """Each run begins at its own time, and its steps take about as long as each other."""
    pace = window_s / (num_steps / num_runs)
    next_at = [random.uniform(0, pace) for _ in range(num_runs)]
    steps = []
    for number in range(num_steps):
        run = min(range(num_runs), key=next_at.__getitem__)
        steps.append((next_at[run], run, number))
        next_at[run] += pace * random.uniform(0.8, 1.2)
    return steps


def _training(bursts: list[tuple[float, int, int, int]], random: Random) -> Iterator[Visitor]:
    for at, run, step, size in bursts:
        driver = "qemu" if Random(f"driver {run}").random() < EMULATED else "gvisor"
        for number in range(size):
            group = f"{run}/{step}/{number // GROUP_SIZE}"
            request = PlacementRequest(
                sandbox=f"episode-{step}-{number}",
                tenant="training",
                snapshot=f"t-{run % NUM_TEMPLATES}",
                driver=driver,
                cpus=2.0,
                memory_bytes=GIB,
                disk_bytes=2 * GIB,
                spread=Spread(key=group, most_per_node=MOST_OF_A_GROUP),
            )
            yield _visitor(request, at, random, median_s=400.0, spread=0.6, saved=0.5)


def _people(count: int, window_s: float, random: Random) -> Iterator[Visitor]:
    at = 0.0
    for number in range(count):
        at += random.expovariate(count / window_s)
        size = random.choice((1, 2, 4))
        request = PlacementRequest(
            sandbox=f"session-{number}",
            tenant=f"tenant-{random.randrange(500)}",
            # A few templates are popular, most are not.
            snapshot=f"t-{min(NUM_TEMPLATES - 1, int(random.paretovariate(1.0)) - 1)}",
            driver="gvisor",
            cpus=float(size),
            memory_bytes=size * GIB,
            disk_bytes=4 * size * GIB,
        )
        yield _visitor(request, at, random, median_s=900.0, spread=1.0, saved=0.9)


def _visitor(
    request: PlacementRequest,
    at: float,
    random: Random,
    *,
    median_s: float,
    spread: float,
    saved: float,
) -> Visitor:
    """Lifetimes are log-normal; most sandboxes use little of what they may, a few nearly all."""
    return Visitor(
        request=request,
        arrives_at=at,
        lifetime_s=random.lognormvariate(log(median_s), spread),
        cpus_used=request.cpus * random.betavariate(1.0, 7.0),
        memory_used_bytes=int(request.memory_bytes * random.betavariate(2.0, 4.0)),
        snapshot=f"s-{request.sandbox}" if random.random() < saved else "",
    )
