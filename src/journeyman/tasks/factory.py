"""The task factory: from pinned source distributions to a confirmed set of tasks.

    fetch → survey the tests → break functions → screen → write → confirm → put in place

Every step that runs somebody else's code does so in a sandbox (but for pip, which asks a
distribution's build backend for its metadata). What was found out is kept by content, so an
interrupted build goes on where it was and a rebuild is quick.
"""

import asyncio
import json
import math
import os
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from journeyman.observe import Progress, Stage
from journeyman.sandbox.client import SandboxClient
from journeyman.tasks import sdist
from journeyman.tasks.candidates import Candidate, candidates
from journeyman.tasks.confirming import Confirmation
from journeyman.tasks.harbor import load_task
from journeyman.tasks.instruction import Place, instruction
from journeyman.tasks.journal import Journal, content_key
from journeyman.tasks.projects import Project
from journeyman.tasks.screening import Screened, request, screen
from journeyman.tasks.size import EpisodeSize
from journeyman.tasks.splitting import balanced, order_key
from journeyman.tasks.survey import Survey, survey
from journeyman.tasks.workshop import project_environment, workshop
from journeyman.tasks.writing import SharedFiles, write_task
from journeyman.types import Environment, SandboxError, Split, UserError

REVISION = "1"
"""Raise when a survey or a screening would find out something else than before. A task's
confirmation is kept by all of its files, the harness included."""
AT_A_TIME = 3
BATCH = 24
PER_FUNCTION = 4
KEPT_PER_FUNCTION = 3
SPARE, SPARE_MORE = 1.2, 6
"""How many more faults are screened than tasks wanted, a factor and a number for each project:
some will not be confirmed, and chance shares functions out between the splits."""
SPLITS: tuple[Split, ...] = ("warm", "train", "held_out")

Item = TypeVar("Item")


@dataclass(frozen=True)
class Plan:
    """What to build. `wanted` is the most tasks of each split."""

    projects: tuple[Project, ...]
    wanted: Mapping[Split, int]
    seed: int
    target: Path
    """The directory of the finished set; an older set there is replaced at the end."""
    work: Path
    """Where downloads lie, and a journal for each set."""


@dataclass
class Summary:
    """What became of it; written as set.json beside the tasks."""

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    screened: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def total(self, split: str) -> int:
        return sum(self.counts.get(split, {}).values())


@dataclass(frozen=True)
class _Prepared:
    project: Project
    files: Mapping[str, bytes]
    archive: bytes
    environment: Environment
    survey: Survey


@dataclass(frozen=True)
class _Fault:
    candidate: Candidate
    screened: Screened
    instruction: str


async def build(
    plan: Plan, sandboxes: SandboxClient, size: EpisodeSize, progress: Progress
) -> Summary:
    """Build the set. Raises UserError if a project cannot be had or nothing comes of it."""
    with Journal(plan.work / f"{plan.target.name}.jsonl").open() as journal:
        return await _Factory(plan, sandboxes, size, progress, journal).build()


class _Factory:
    def __init__(
        self,
        plan: Plan,
        sandboxes: SandboxClient,
        size: EpisodeSize,
        progress: Progress,
        journal: Journal,
    ) -> None:
        self._plan = plan
        self._sandboxes = sandboxes
        self._size = size
        self._progress = progress
        self._journal = journal
        self._places = asyncio.Semaphore(AT_A_TIME)
        self._parsing = asyncio.Lock()
        # Python 3.11 keeps the parser's recursion depth per process: two threads that parse at
        # once end in "AST constructor recursion depth mismatch".
        self._summary = Summary()
        self._began = time.monotonic()

    async def build(self) -> Summary:
        archives = await self._fetch()
        with self._timed("survey"):
            prepared = await self._survey(archives)
        with self._timed("screen"):
            faults = await self._screen(prepared)
        with tempfile.TemporaryDirectory(dir=_parent(self._plan.target), prefix=".set-") as name:
            root = Path(name) / "set"
            root.mkdir()
            with self._timed("confirm"):
                kept = await self._confirm(root, prepared, faults)
            if not kept:
                raise UserError(
                    "no fault became a task", f"Rejected: {dict(self._summary.rejected)}"
                )
            self._describe(root, kept)
            _put_in_place(root, self._plan.target)
        return self._summary

    @asynccontextmanager
    async def _place(self, stage: Stage) -> AsyncIterator[None]:
        """One of the few sandboxes that may run at a time."""
        async with self._places:
            yield
        stage.advance()

    def _timed(self, name: str) -> "_Timer":
        return _Timer(name, self._summary.seconds)

    async def _fetch(self) -> dict[str, Path]:
        projects = self._plan.projects
        with (
            self._timed("fetch"),
            self._progress.stage("fetch", len(projects), "projects") as stage,
        ):
            archives = await asyncio.to_thread(sdist.fetch, projects, self._plan.work / "downloads")
            stage.advance(len(projects))
        return archives

    # --- survey --------------------------------------------------------------------------------

    async def _survey(self, archives: Mapping[str, Path]) -> list[_Prepared]:
        projects = self._plan.projects
        with self._progress.stage("survey the tests", len(projects), "projects") as stage:
            return await _all(
                self._survey_one(project, archives[project.name], stage) for project in projects
            )

    async def _survey_one(self, project: Project, path: Path, stage: Stage) -> _Prepared:
        files = sdist.unpack(project, path)
        archive = sdist.pack(files)
        async with self._place(stage):
            environment = await project_environment(archive, self._sandboxes)
            key = content_key("survey", REVISION, archive, project.model_dump_json())
            known = self._journal.get(key)
            if known is None:
                async with workshop(environment, self._sandboxes) as shop:
                    found = await survey(project, shop)
                self._journal.put(key, found.model_dump())
            else:
                found = Survey.model_validate(known)
        return _Prepared(project, files, archive, environment, found)

    # --- screening -----------------------------------------------------------------------------

    async def _screen(self, prepared: Sequence[_Prepared]) -> list[_Fault]:
        aims = {item.project.name: self._aim(item.project) for item in prepared}
        with self._progress.stage("screen faults", sum(aims.values()), "faults") as stage:
            found = await _all(
                self._screen_project(item, aims[item.project.name], stage) for item in prepared
            )
        return [fault for faults in found for fault in faults]

    def _aim(self, project: Project) -> int:
        """How many faults of a project to find."""
        held_out = project.split == "held_out"
        splits: tuple[Split, ...] = ("held_out",) if held_out else ("warm", "train")
        wanted = sum(self._plan.wanted[split] for split in splits)
        sharers = sum(other.split == project.split for other in self._plan.projects)
        return math.ceil(SPARE * wanted / sharers) + SPARE_MORE

    async def _screen_project(self, item: _Prepared, aim: int, stage: Stage) -> list[_Fault]:
        async with self._parsing:
            pool = await asyncio.to_thread(
                candidates,
                item.project,
                item.files,
                item.survey,
                size=self._size,
                seed=self._plan.seed,
                per_function=PER_FUNCTION,
            )
        found: list[_Fault] = []
        place = 0
        while place < len(pool) and len(found) < aim:
            # About two in three will do.
            batch = pool[place : place + min(BATCH, math.ceil(1.5 * (aim - len(found))))]
            place += len(batch)
            async with self._places:
                results = await self._screen_batch(item, batch)
            before = len(found)
            found += self._faults(batch, results)
            stage.advance(min(len(found), aim) - min(before, aim))
            stage.note(item.project.name)
        stage.advance(max(0, aim - len(found)))
        return found

    def _faults(self, batch: Sequence[Candidate], results: Sequence[Screened]) -> list[_Fault]:
        found: list[_Fault] = []
        for candidate, screened in zip(batch, results, strict=True):
            self._summary.screened += 1
            if screened.rejected:
                self._summary.rejected[screened.rejected] += 1
                continue
            oracle = candidate.oracle
            place = Place(
                oracle.path,
                candidate.mutation.function.qualname,
                oracle.offset,
                oracle.offset + oracle.limit - 1,
                candidate.mutation.line,
            )
            text = instruction(screened.test, screened.explanation, place)
            if self._size.instruction_fits(text):
                found.append(_Fault(candidate, screened, text))
            else:
                self._summary.rejected["instruction too long"] += 1
        return found

    async def _screen_batch(self, item: _Prepared, batch: Sequence[Candidate]) -> list[Screened]:
        keys = [
            content_key(
                "screen",
                REVISION,
                item.archive,
                candidate.path,
                candidate.mutation.source,
                *candidate.tests,
            )
            for candidate in batch
        ]
        missing = [
            (key, candidate)
            for key, candidate in zip(keys, batch, strict=True)
            if self._journal.get(key) is None
        ]
        for (key, candidate), result in zip(
            missing, await self._run(item, [candidate for _, candidate in missing]), strict=True
        ):
            if result is None:
                screened = Screened(rejected="ends the sandbox")
            else:
                screened = screen(candidate, result, item.survey.patched)
            self._journal.put(key, screened.model_dump())
        return [Screened.model_validate(self._journal.get(key)) for key in keys]

    async def _run(
        self, item: _Prepared, batch: Sequence[Candidate]
    ) -> list[dict[str, Any] | None]:
        """Results of the test runs; None for a fault that takes its sandbox down."""
        if not batch:
            return []
        requests = [request(candidate, item.survey.tests) for candidate in batch]
        for last in (False, True):
            try:
                async with workshop(item.environment, self._sandboxes) as shop:
                    return list(await shop.run(requests))
            except SandboxError:
                await self._sandboxes.health()  # raises where the service is what failed
                if len(batch) > 1:
                    break
                if last:
                    return [None]
        half = len(batch) // 2
        return [
            *await self._run(item, batch[:half]),
            *await self._run(item, batch[half:]),
        ]

    # --- confirmation --------------------------------------------------------------------------

    async def _confirm(
        self, root: Path, prepared: Sequence[_Prepared], faults: Sequence[_Fault]
    ) -> list[_Fault]:
        patched = {item.project.name: item.survey.patched for item in prepared}
        shared = {
            item.project.name: SharedFiles(root, item.project.name, item.files) for item in prepared
        }
        confirmation = Confirmation(self._sandboxes, self._journal)
        queues = {split: self._queue(faults, split) for split in SPLITS}
        wanted = {split: min(self._plan.wanted[split], len(queues[split])) for split in SPLITS}

        async def examine(fault: _Fault, stage: Stage) -> bool:
            candidate = fault.candidate
            name = candidate.project.name
            directory = root / candidate.id
            async with self._places:
                write_task(directory, candidate, fault.instruction, patched[name], shared[name])
                why = await confirmation.rejected(load_task(directory), fault.screened.failing)
            if why:
                self._summary.rejected[why] += 1
                shutil.rmtree(directory)
            else:
                stage.advance()
                stage.note(name)
            return not why

        with self._progress.stage("confirm tasks", sum(wanted.values()), "tasks") as stage:
            kept: list[_Fault] = []
            for split in SPLITS:
                kept += await _fill(
                    queues[split], wanted[split], lambda fault: examine(fault, stage)
                )
        return kept

    def _queue(self, faults: Sequence[_Fault], split: Split) -> list[_Fault]:
        """The faults of a split in the order in which they are to be taken."""
        mine = [fault for fault in faults if fault.candidate.split == split]
        by_function: dict[str, list[_Fault]] = defaultdict(list)
        for fault in mine:
            by_function[f"{fault.candidate.project.name}:{fault.candidate.function}"].append(fault)
        few = [fault for group in by_function.values() for fault in group[:KEPT_PER_FUNCTION]]
        return balanced(
            few,
            len(few),
            [lambda fault: fault.candidate.project.name, _kind],
            lambda fault: order_key(self._plan.seed, "queue", fault.candidate.id),
        )

    def _describe(self, root: Path, kept: Sequence[_Fault]) -> None:
        summary = self._summary
        for split in SPLITS:
            mine = [fault.candidate for fault in kept if fault.candidate.split == split]
            summary.counts[split] = dict(
                sorted(Counter(candidate.project.name for candidate in mine).items())
            )
            summary.kinds[split] = dict(
                Counter(candidate.mutation.kind for candidate in mine).most_common()
            )
        summary.seconds["total"] = time.monotonic() - self._began
        description = {
            "seed": self._plan.seed,
            "counts": summary.counts,
            "kinds": summary.kinds,
            "screened": summary.screened,
            "rejected": dict(summary.rejected.most_common()),
            "seconds": {name: round(value, 1) for name, value in summary.seconds.items()},
        }
        text = json.dumps(description, indent=1) + "\n"
        (root / "set.json").write_text(text, encoding="utf-8")


def _kind(fault: _Fault) -> str:
    return fault.candidate.mutation.kind


class _Timer:
    def __init__(self, name: str, seconds: dict[str, float]) -> None:
        self._name, self._seconds = name, seconds

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._seconds[self._name] = time.monotonic() - self._began


async def _fill(
    queue: Sequence[Item], wanted: int, good: Callable[[Item], Awaitable[bool]]
) -> list[Item]:
    """The first `wanted` good items of the queue, whatever order they are examined in."""
    kept: list[Item] = []
    place = 0
    while len(kept) < wanted and place < len(queue):
        batch = queue[place : place + wanted - len(kept)]
        place += len(batch)
        verdicts = await _all(good(item) for item in batch)
        kept += [item for item, verdict in zip(batch, verdicts, strict=True) if verdict]
    return kept


async def _all(jobs: Iterable[Awaitable[Item]]) -> list[Item]:
    """Results in order; the first failure ends the others and is raised by itself."""
    tasks: list[asyncio.Task[Item]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_await(job)) for job in jobs]
    except* Exception as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


async def _await(job: Awaitable[Item]) -> Item:
    return await job


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors


def _parent(target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent


def _put_in_place(root: Path, target: Path) -> None:
    """Replace an older set; at no time is there half a set under the final name."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".old-") as old:
        if target.exists():
            os.rename(target, Path(old) / "set")
        os.rename(root, target)
