"""The main job: base → warm start → reinforcement, each measured on held-out tasks."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from journeyman.config import RunConfig
from journeyman.controller.checkpoints import Checkpoints
from journeyman.controller.collector import Collector
from journeyman.controller.prompts import PromptOrder
from journeyman.controller.reinforcement import Reinforcement
from journeyman.episodes import Arena, Attempt
from journeyman.evaluation import Evaluation, evaluate
from journeyman.evaluation.report.data import GREEDY
from journeyman.flywheel.directory import RunDirectory, Stopwatch
from journeyman.flywheel.inputs import TaskSets
from journeyman.flywheel.services import Services
from journeyman.flywheel.summary import summarise
from journeyman.flywheel.supervised import Supervised
from journeyman.observe import Progress
from journeyman.store import Ledger
from journeyman.types import Episode, FailureKind, Task

log = logging.getLogger(__name__)


class Job:
    """One run. Phases that were finished before are not done again."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        tasks: TaskSets,
        services: Services,
        progress: Progress,
    ) -> None:
        self._config = config
        self._directory = directory
        self._tasks = tasks
        self._services = services
        self._progress = progress
        self._stopwatch = Stopwatch(directory)
        self._checkpoints = Checkpoints(directory.training, config.reinforcement.checkpoint_every)
        stored = services.store.evaluations(directory.name, Evaluation)
        self._done = {(name, step): evaluation for name, step, evaluation in stored}
        self.evaluations = {name: done for name, _, done in stored if name != "during"}
        self._supervised = Supervised(
            services,
            config.warm_start,
            config.seed,
            progress,
            attempt=lambda arena, task: self._attempt(arena, "oracle", "oracle", task),
            on_step=self._record_warm,
        )

    async def run(self) -> dict[str, Any]:
        """All phases in order. Returns the summary."""
        if self._config.evaluation.base:
            await self.evaluate("base")
        await self._start_policy()
        if self._config.reinforcement.steps:
            with self._stopwatch.running("reinforcement"):
                steps = await self.reinforce()
            await self.evaluate("rl", steps)
        await self._export()
        if self._config.controls.continued:
            await self._continued_control()
        return self.summary()

    def summary(self) -> dict[str, Any]:
        """The numbers so far."""
        return summarise(
            self.evaluations,
            self._stopwatch.seconds,
            str(self._directory.root),
            pass_at=self._config.evaluation.pass_at,
        )

    async def _start_policy(self) -> None:
        """The policy that reinforcement starts from: the warm start, or its plateau. Once it is
        kept, the states that led to it go: each takes three times the weights' space."""
        start = self._directory.training / "start"
        if start.is_dir():
            await self._supervised.load(start)
            await self._services.learner("supervised").publish()
            return
        await self.warm_start()
        await self.evaluate("warm")
        if self._config.controls.plateau:
            await self._plateau()
        await self._services.trainer.reset_optimiser.remote()
        await self._supervised.save(start)
        await asyncio.to_thread(self._directory.drop_training, keep=[start.name])

    async def warm_start(self) -> None:
        """Supervised episodes, learned or loaded; nothing where the configuration skips them."""
        if not self._config.warm_start.epochs:
            return
        saved = self._directory.training / "warm"
        with self._stopwatch.running("warm_start"):
            if saved.is_dir():
                await self._supervised.load(saved)
            else:
                episodes = await self._oracle_episodes()
                await self._supervised.train(episodes, self._config.warm_start.epochs)
                await self._supervised.save(saved)
            await self._services.learner("supervised").publish()

    async def _plateau(self) -> None:
        """Epoch after epoch, each with the whole schedule, until one is no better on the held-out
        tasks than the best before it. Choosing by held-out tasks flatters this control."""
        best = "warm"
        episodes = await self._oracle_episodes()
        for epochs in range(1, self._config.controls.plateau_epochs + 1):
            phase = f"plateau-{epochs}"
            state = self._directory.training / phase
            if state.is_dir():
                await self._supervised.load(state)
            else:
                with self._stopwatch.running("plateau"):
                    await self._supervised.train(episodes, 1)
                await self._supervised.save(state)
            await self._services.learner("supervised").publish()
            found = await self.evaluate(phase)
            if found.solved <= self.evaluations[best].solved:
                break
            best = phase
        for suffix in ("", GREEDY):
            if best + suffix in self.evaluations:
                self.evaluations["plateau" + suffix] = self.evaluations[best + suffix]
                self._keep("plateau" + suffix, 0, self.evaluations[best + suffix])
        await self._supervised.load(self._directory.training / best)
        await self._services.learner("supervised").publish()

    async def _continued_control(self) -> None:
        """Supervised training from the same start for as long as reinforcement took. Its weights
        depend on the clock, so they are kept before they are evaluated."""
        state = self._directory.training / "sft_control"
        if state.is_dir():
            await self._supervised.load(state)
        else:
            await self._supervised.load(self._directory.training / "start")
            episodes = await self._oracle_episodes()
            seconds = self._stopwatch.seconds["reinforcement"]
            with self._stopwatch.running("sft_control"):
                await self._supervised.continue_for(episodes, seconds)
            await self._supervised.save(state)
        await self._services.learner("supervised").publish()
        await self.evaluate("sft_control")

    async def _oracle_episodes(self) -> list[Episode]:
        """Replayed once in a run, kept in the store."""
        marker = self._directory.root / "replayed"
        name = self._directory.name
        if not marker.is_file():
            kept = await asyncio.to_thread(self._kept, "oracle", self._tasks.warm)
            missing = [task for task in self._tasks.warm if (task.id, 0) not in kept]
            await self._supervised.replay(missing)
            self._directory.write("replayed", "")
        return await asyncio.to_thread(
            lambda: list(self._services.store.episodes(run=name, kind="oracle"))
        )

    async def evaluate(self, name: str, step: int = 0) -> Evaluation:
        """Evaluate the weights that the engine serves on the held-out tasks, once in a run.

        `step` is the number of reinforcement steps they have had.
        """
        config = self._config.evaluation
        done = await self._evaluate(name, step, config.samples, 1.0)
        if config.greedy and name != "during":
            await self._evaluate(name + GREEDY, step, 1, 0.0)
        return done

    async def _evaluate(self, name: str, step: int, samples: int, temperature: float) -> Evaluation:
        done = self._done.get((name, step))
        if done is None:
            total = len(self._tasks.held_out) * samples
            phase = f"{name}-{step}"
            kept = await asyncio.to_thread(self._kept, phase, self._tasks.held_out)
            with (
                self._progress.stage(f"evaluate {name}", total, "episodes") as stage,
                self._stopwatch.running(f"evaluate_{name}"),
            ):

                async def attempt(task: Task, index: int) -> Episode:
                    if (task.id, index) in kept:
                        return kept[task.id, index]
                    arena = self._services.arena
                    return await self._attempt(arena, "held_out", phase, task, index, temperature)

                done = await evaluate(
                    self._tasks.held_out,
                    samples,
                    attempt,
                    max_concurrency=self._config.sandbox.concurrency,
                    stage=stage,
                    seed=self._config.seed,
                )
            self._keep(name, step, done)
        self.evaluations[name] = done
        return done

    def _kept(self, phase: str, tasks: Sequence[Task]) -> dict[tuple[str, int], Episode]:
        """Episodes by task and index of a phase that was broken off. The same attempt from the
        same weights samples the same tokens: they stand, but for those that a machine's failure
        ended."""
        store, run = self._services.store, self._directory.name
        return {
            (task.id, episode.index): episode
            for task in tasks
            for episode in store.episodes(run=run, group=self._group(phase, task))
            if episode.failure is None or episode.failure.kind != FailureKind.INFRA
        }

    def _group(self, phase: str, task: Task) -> str:
        return f"{self._directory.name}/{phase}/{task.id}"

    def _keep(self, name: str, step: int, done: Evaluation) -> None:
        self._services.store.save_evaluation(self._directory.name, name, step, done)
        self._done[name, step] = done

    async def _attempt(
        self,
        arena: Arena,
        kind: str,
        phase: str,
        task: Task,
        index: int = 0,
        temperature: float = 1.0,
    ) -> Episode:
        group = self._group(phase, task)
        this = Attempt(kind=kind, group=group, index=index, temperature=temperature)
        episode = await arena.attempt(task, this, grade=kind != "oracle")
        await asyncio.to_thread(self._services.store.save_episode, episode, self._directory.name)
        return episode

    async def _record_warm(self, step: int, figures: dict[str, float]) -> None:
        named = {f"warm_{name}": value for name, value in figures.items()}
        store = self._services.store
        await asyncio.to_thread(store.save_metrics, self._directory.name, step, named)

    async def reinforce(self) -> int:
        """Policy-gradient steps from the present weights, or from the last checkpoint. Returns
        how many steps the policy has had."""
        config = self._config.reinforcement
        left_s = config.max_s - self._stopwatch.seconds.get("reinforcement", 0.0)
        ledger = Ledger(self._services.store, self._directory.name)
        done = await asyncio.to_thread(ledger.last_applied) or 0
        with self._progress.stage("reinforce", config.steps, limit_s=left_s, done=done) as stage:
            if done > (kept := max(self._checkpoints.steps(), default=0)):
                stage.note(f"takes steps {kept + 1} to {done} again: their checkpoint is missing")

            async def on_step(step: int, figures: dict[str, float]) -> None:
                stage.advance(step - stage.done)
                self._stopwatch.keep()
                kept = figures["groups"] - figures["groups_dropped"]
                stage.note(
                    f"reward {figures.get('reward', 0.0):.2f}, {kept:.0f} of "
                    f"{figures['groups']:.0f} groups teach, {figures['step_s/total']:.0f} s"
                )
                every = self._config.evaluation.every
                if every and step % every == 0 and step < config.steps:
                    await self.evaluate("during", step)

            steps = await self._loop(ledger, left_s, on_step).run()
            if steps < config.steps:
                stage.note(f"ended by reinforcement.max_s = {config.max_s:.0f}")
            return steps

    def _loop(
        self,
        ledger: Ledger,
        left_s: float,
        on_step: Callable[[int, dict[str, float]], Awaitable[None]],
    ) -> Reinforcement:
        config = self._config.reinforcement

        async def attempt(task: Task, group: str, index: int) -> Episode:
            this = Attempt(kind="train", group=group, index=index, temperature=config.temperature)
            return await self._services.arena.attempt(task, this)

        return Reinforcement(
            config,
            order=PromptOrder(
                self._tasks.train,
                self._config.seed,
                skip_settled=config.skip_settled,
                fewest=config.groups_per_step,
            ),
            collector=Collector(
                attempt, ledger, group_size=config.group_size, infra_retries=config.infra_retries
            ),
            ledger=ledger,
            learner=self._services.learner("policy"),
            checkpoints=self._checkpoints,
            timer=self._services.timer,
            remaining_s=left_s,
            on_step=on_step,
        )

    async def _export(self) -> None:
        if self._directory.checkpoint.is_dir():
            await asyncio.to_thread(shutil.rmtree, self._directory.checkpoint)
        await self._services.learner("policy").export(self._directory.checkpoint)
