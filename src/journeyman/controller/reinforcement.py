"""The main loop: prompts → graded groups → batch → policy version → the same engine."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol

from journeyman.config import ReinforcementConfig
from journeyman.controller.advantages import Group, GroupOutcome, outcome, solved, well_formed
from journeyman.controller.checkpoints import Checkpoints
from journeyman.controller.collector import Collector
from journeyman.controller.prompts import PromptOrder
from journeyman.observe import StageTimer, Timings
from journeyman.store import Lease, Ledger
from journeyman.types import Batch, PolicyVersion, Sample, Task, UserError

MAX_BARREN_ROUNDS = 6
"""So many rounds in which no group had two different rewards end the run."""


class Learner(Protocol):
    """The trainer and the engine it feeds, wherever they run."""

    async def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """One optimiser step on the policy loss."""
        ...

    async def publish(self) -> PolicyVersion:
        """Give the engine the present weights; returns when it serves them."""
        ...

    async def save(self, directory: Path) -> None: ...

    async def load(self, directory: Path) -> None: ...


class Reinforcement:
    """One run of reinforcement learning. Every prompt is used once in an epoch, whatever dies."""

    def __init__(
        self,
        config: ReinforcementConfig,
        *,
        order: PromptOrder,
        collector: Collector,
        ledger: Ledger,
        learner: Learner,
        checkpoints: Checkpoints,
        timer: StageTimer,
        remaining_s: float,
        on_step: Callable[[int, dict[str, float]], Awaitable[None]],
    ) -> None:
        """`on_step` hears of every round: of a barren one with the step before it."""
        self._config = config
        self._order = order
        self._collector = collector
        self._ledger = ledger
        self._learner = learner
        self._checkpoints = checkpoints
        self._timer = timer
        self._on_step = on_step
        self._deadline = time.monotonic() + remaining_s

    async def run(self) -> int:
        """Returns the number of steps applied."""
        step, work, graded = await self._recover()
        barren = 0
        while step < self._config.steps and time.monotonic() < self._deadline:
            self._timer.lap()
            wanted = self._config.groups_per_step - len(graded) - len(work)
            work += await self._lease(wanted)
            groups = graded + await self._collector.collect(work)
            groups.sort(key=lambda pair: pair[0].group)  # the same batch, resumed or not
            work, graded = [], []
            samples, figures = await self._judge(groups)
            barren = 0 if samples else barren + 1
            if barren == MAX_BARREN_ROUNDS:
                raise _nothing_to_learn(figures)
            if not samples:
                await self._on_step(step, figures | seconds(self._timer.lap()))
                continue
            step += 1
            batch = Batch(step=step, samples=tuple(samples))
            await asyncio.to_thread(self._ledger.batched, batch)
            with self._timer.stage("train"):
                figures |= await self._learner.step(batch, self._learning_rate(step))
                version = await self._learner.publish()
            figures |= seconds(self._timer.lap())
            await asyncio.to_thread(self._ledger.applied, step, version, figures)
            await self._checkpoints.maybe_save(step, self._learner)
            await self._on_step(step, figures)
        await self._checkpoints.save(step, self._learner)
        return step

    async def _lease(self, count: int) -> list[tuple[Lease, Task]]:
        """The next prompts in order; an epoch's end inside them starts the next epoch."""
        past = await asyncio.to_thread(self._ledger.past)
        work: list[tuple[Lease, Task]] = []
        for epoch, prompts in groupby(self._order.take(count, past), lambda p: p.epoch):
            tasks = [prompt.task for prompt in prompts]
            ids = [task.id for task in tasks]
            leases = await asyncio.to_thread(self._ledger.lease, epoch, ids)
            work += zip(leases, tasks, strict=True)
        return work

    async def _judge(
        self, groups: Sequence[tuple[Lease, Group]]
    ) -> tuple[list[Sample], dict[str, float]]:
        """Groups that teach nothing are dropped by name; the others give their samples."""
        outcomes: list[GroupOutcome] = []
        for lease, group in groups:
            result = outcome(
                group,
                format_reward=self._config.format_reward,
                normalise_std=self._config.normalise_std,
                negative_weight=self._config.negative_weight,
            )
            if result.dropped:
                await asyncio.to_thread(self._ledger.dropped, lease, result.dropped)
            outcomes.append(result)
        samples = [sample for result in outcomes for sample in result.samples]
        return samples, _figures([group for _, group in groups], outcomes)

    def _learning_rate(self, step: int) -> float:
        warmup = self._config.warmup_steps
        return self._config.learning_rate * min(1.0, step / (warmup + 1))

    async def _recover(
        self,
    ) -> tuple[int, list[tuple[Lease, Task]], list[tuple[Lease, Group]]]:
        """Restore the last checkpoint, replay what was batched after it, take over the rest."""
        held = await self._checkpoints.restore(self._learner)
        recovery = await asyncio.to_thread(self._ledger.recover, held)
        step = held or 0
        if held is not None:
            version = await self._learner.publish()
            for number in recovery.unrecorded:
                await asyncio.to_thread(self._ledger.applied, number, version)
        for batch in recovery.replay:
            figures = await self._learner.step(batch, self._learning_rate(batch.step))
            version = await self._learner.publish()
            await asyncio.to_thread(self._ledger.applied, batch.step, version, figures)
            step = batch.step
        work = [(lease, self._order.tasks[lease.prompt]) for lease in recovery.leases]
        graded = [
            (kept.lease, Group(id=kept.lease.group, episodes=kept.episodes))
            for kept in recovery.graded
        ]
        return step, work, graded


def _nothing_to_learn(figures: dict[str, float]) -> UserError:
    return UserError(
        f"{MAX_BARREN_ROUNDS} rounds on end had no group with two different rewards "
        f"(mean reward {figures.get('reward', 0.0):.3f}): there is nothing to learn from",
        "warm the policy up longer, or take tasks it sometimes solves",
    )


def seconds(timings: Timings) -> dict[str, float]:
    """Wall time of one step by stage; the shares and `other` add up to the total."""
    return {
        **{f"step_s/{name}": share for name, share in timings.share_s.items()},
        "step_s/other": timings.other_s,
        "step_s/total": timings.total_s,
    }


def _figures(groups: Sequence[Group], outcomes: Sequence[GroupOutcome]) -> dict[str, float]:
    """What the dashboard shows of one step's episodes."""
    episodes = [episode for group in groups for episode in group.episodes]
    failures: dict[str, float] = {}
    for episode in episodes:
        failure = episode.failure or (episode.verdict.failure if episode.verdict else None)
        if failure is not None:
            key = f"failures_{failure.kind}"
            failures[key] = failures.get(key, 0.0) + 1
    timings: dict[str, Any] = {}
    for episode in episodes:
        for name, seconds in episode.timings_s.items():
            timings.setdefault(f"episode_{name}_s", []).append(seconds)
    by_group = [list(result.rewards) for result in outcomes if result.rewards]
    return {
        **_reward_figures(by_group),
        "well_formed": fmean([well_formed(e) for e in episodes]) if episodes else 0.0,
        "episodes": float(len(episodes)),
        "groups": float(len(groups)),
        "groups_both_outcomes": float(
            sum(0 < solved(group.episodes) < len(group.episodes) for group in groups)
        ),
        "groups_dropped": float(sum(result.dropped is not None for result in outcomes)),
        "null_rewards": float(sum(result.null_rewards for result in outcomes)),
        "sampled_tokens": float(sum(sum(s.loss_mask) for e in episodes for s in e.streams)),
        "stream_tokens": float(sum(len(s.token_ids) for e in episodes for s in e.streams)),
        **failures,
        **{name: fmean(values) for name, values in timings.items()},
    }


def _reward_figures(by_group: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean reward over groups, with a normal 95% interval that takes groups as the unit."""
    means = [fmean(rewards) for rewards in by_group]
    if not means:
        return {}
    mean = fmean(means)
    half = 1.96 * stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
    return {"reward": mean, "reward_low": max(0.0, mean - half), "reward_high": mean + half}
