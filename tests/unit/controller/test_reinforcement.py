"""The main loop over a real ledger, stopped at every point where it could be, and resumed."""

import asyncio
import hashlib
import json
import time
from pathlib import Path

import pytest

from journeyman.config import ReinforcementConfig
from journeyman.controller.checkpoints import Checkpoints
from journeyman.controller.collector import Collector
from journeyman.controller.prompts import PromptOrder
from journeyman.controller.reinforcement import Reinforcement
from journeyman.observe import StageTimer
from journeyman.store import Ledger, Store
from journeyman.types import (
    Batch,
    Episode,
    Failure,
    FailureKind,
    JourneymanError,
    PolicyVersion,
    StopReason,
    Task,
    TokenStream,
    UserError,
    Verdict,
)

CONFIG = ReinforcementConfig(steps=4, groups_per_step=3, group_size=2, checkpoint_every=2)
TASKS = [
    Task(id=f"t{i}", instruction="fix", directory="/t", split="train", digest=str(i))
    for i in range(7)
]


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


class World:
    """A deterministic policy whose weights are a hash of all batches applied; it dies on cue."""

    def __init__(self, root: Path, die_at: int | None = None) -> None:
        self.root = root
        self.weights = "start"
        self.steps = 0
        self.die_at = die_at
        self.calls = 0
        self.batches: list[Batch] = []

    def call(self) -> None:
        self.calls += 1
        if self.calls == self.die_at:
            raise Killed

    async def attempt(self, task: Task, group: str, index: int) -> Episode:
        self.call()
        stream = TokenStream(
            token_ids=(1, 2), loss_mask=(False, True), logprobs=(0.0, -1.0), versions=(-1, 1)
        )
        # Task t3 is solved by every episode: its group teaches nothing.
        reward = float(index == 0 or task.id == "t3")
        return Episode(
            id=f"{group}/{index}", task=task.id, group=group, kind="train", prompt=(), turns=(),
            streams=(stream,), stop=StopReason.SUBMITTED, started_at=0.0,
            verdict=Verdict(reward=reward, tree="x"),
        )  # fmt: skip

    async def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        self.call()
        samples = [f"{s.group}{s.advantage}" for s in batch.samples]
        text = self.weights + json.dumps(samples) + str(learning_rate)
        self.weights = hashlib.sha256(text.encode()).hexdigest()
        self.steps = batch.step
        self.batches.append(batch)
        self.call()
        return {"train_loss": 0.5}

    async def publish(self) -> PolicyVersion:
        self.call()
        return PolicyVersion(number=self.steps, digest=self.weights)

    async def save(self, directory: Path) -> None:
        self.call()
        directory.mkdir(parents=True)  # noqa: ASYNC240
        (directory / "w").write_text(json.dumps([self.weights, self.steps]))
        self.call()

    async def load(self, directory: Path) -> None:
        self.weights, self.steps = json.loads((directory / "w").read_text())


SKIPPING = CONFIG.model_copy(update={"skip_settled": True, "steps": 6})


async def run(world: World, ledger: Ledger, config: ReinforcementConfig = CONFIG) -> int:
    async def on_step(step: int, figures: dict[str, float]) -> None:
        assert figures["step_s/total"] > 0

    loop = Reinforcement(
        config,
        order=PromptOrder(TASKS, seed=0, skip_settled=config.skip_settled, fewest=3),
        collector=Collector(
            world.attempt, ledger, group_size=config.group_size, infra_retries=config.infra_retries
        ),
        ledger=ledger,
        learner=world,
        checkpoints=Checkpoints(world.root / "training", config.checkpoint_every),
        timer=StageTimer(),
        remaining_s=60.0,
        on_step=on_step,
    )
    return await loop.run()


def ledger_in(root: Path) -> Ledger:
    store = Store(f"sqlite:///{root / 'store.db'}")
    if "r" not in store.run_names():
        store.create_run("r", {})
    return Ledger(store, "r")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("unbroken"))
    assert asyncio.run(run(world, ledger_in(world.root))) == 4
    return world


def test_groups_that_teach_nothing_are_dropped_and_the_rest_applied(unbroken: World) -> None:
    audit = ledger_in(unbroken.root).audit(0, [task.id for task in TASKS])
    assert audit.whole
    assert audit.applied == 6
    assert audit.dropped == {"equal_rewards": 1}


def test_a_task_whose_episodes_were_all_judged_alike_is_left_out_afterwards(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert asyncio.run(run(world, ledger_in(tmp_path), SKIPPING)) == 6
    ledger = ledger_in(tmp_path)
    assert sorted(ledger.leased_prompts(0)) == [task.id for task in TASKS]
    assert sorted(ledger.leased_prompts(1)) == [task.id for task in TASKS if task.id != "t3"]
    assert len(ledger.leased_prompts(2)) == 6 * 3 - 7 - 6


@pytest.mark.parametrize("die_at", range(1, 60, 3))
def test_killed_while_it_skips_and_resumed_it_ends_as_unbroken(tmp_path: Path, die_at: int) -> None:
    unbroken, first, second = (
        World(tmp_path / "unbroken"),
        World(tmp_path / "killed", die_at),
        World(tmp_path / "killed"),
    )
    for world in (unbroken, first):
        world.root.mkdir()
    asyncio.run(run(unbroken, ledger_in(unbroken.root), SKIPPING))
    with pytest.raises(BaseException):  # noqa: B017
        asyncio.run(run(first, ledger_in(first.root), SKIPPING))
    asyncio.run(run(second, ledger_in(first.root), SKIPPING))
    assert second.weights == unbroken.weights


@pytest.mark.parametrize("die_at", range(1, 40))
def test_killed_anywhere_and_resumed_it_ends_as_the_unbroken_run(
    tmp_path: Path, unbroken: World, die_at: int
) -> None:
    first = World(tmp_path, die_at)
    with pytest.raises(BaseException) as caught:
        asyncio.run(run(first, ledger_in(tmp_path)))
    assert (
        caught.group_contains(Killed)
        if isinstance(caught.value, BaseExceptionGroup)
        else isinstance(caught.value, Killed)
    )
    second = World(tmp_path)
    assert asyncio.run(run(second, ledger_in(tmp_path))) == 4
    assert second.weights == unbroken.weights
    assert ledger_in(tmp_path).audit(0, [task.id for task in TASKS]).whole
    steps = [batch.step for batch in second.batches]
    assert steps == sorted(set(steps))


def test_a_policy_that_never_differs_from_itself_ends_the_run_by_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    plain = world.attempt

    async def hopeless(task: Task, group: str, index: int) -> Episode:
        episode = await plain(task, group, index)
        return episode.model_copy(update={"verdict": Verdict(reward=0.0, tree="x")})

    world.attempt = hopeless  # type: ignore[method-assign]
    with pytest.raises(UserError, match="6 rounds on end had no group with two different"):
        asyncio.run(run(world, ledger_in(tmp_path)))
    assert world.batches == []


def test_an_infra_failure_replaces_only_that_episode_and_a_bug_stops_the_run(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    tried: list[str] = []
    plain = world.attempt

    async def flaky(task: Task, group: str, index: int) -> Episode:
        tried.append(f"{group}/{index}")
        episode = await plain(task, group, index)
        if tried.count(f"{group}/{index}") == 1 and index == 1:
            failure = Failure(kind=FailureKind.INFRA, cause="SandboxGone")
            return episode.model_copy(update={"verdict": None, "failure": failure})
        return episode

    world.attempt = flaky  # type: ignore[method-assign]
    config = CONFIG.model_copy(update={"steps": 1})
    assert asyncio.run(run(world, ledger_in(tmp_path), config)) == 1
    assert sorted(tried.count(name) for name in set(tried)) == [1, 1, 1, 2, 2, 2]

    async def broken(task: Task, group: str, index: int) -> Episode:
        failure = Failure(kind=FailureKind.BUG, cause="KeyError", detail="the trace")
        return (await plain(task, group, index)).model_copy(update={"failure": failure})

    world.attempt = broken  # type: ignore[method-assign]
    config = CONFIG.model_copy(update={"steps": 2})
    started = time.monotonic()
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(run(world, ledger_in(tmp_path), config))
    assert caught.group_contains(JourneymanError, match="the trace")
    assert time.monotonic() - started < 5
