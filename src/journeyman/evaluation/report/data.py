"""What a report tells, gathered from the store.

Read from the store: evaluations named `base`, `warm`, `rl` and any other; the metrics `reward`,
`reward_low`, `reward_high` and `step_s/STAGE` of each step; episodes and their failures.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from journeyman.evaluation.evaluate import Evaluation, gain
from journeyman.evaluation.report.choice import choose_episodes
from journeyman.evaluation.statistics import Interval
from journeyman.store import EpisodeSummary, Store
from journeyman.types import Value

STAGES = ("generate", "sandbox", "grade", "train", "other")
"""The parts of a step, in the order in which they are drawn."""

SECONDS = "step_s/"
TITLES = {
    "base": "starting weights",
    "warm": "after the warm start",
    "plateau": "warm start at its plateau",
    "sft_control": "supervised training continued",
    "rl": "after reinforcement",
    "eval": "this checkpoint",
}
"""The evaluations that a run is told by, in the order shown; any other comes after them."""

GREEDY = "_greedy"
"""Ends the name of an evaluation at temperature 0."""
_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/\s]*@")


class Point(Value):
    """One value of a curve; without an interval `low` and `high` are None."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


class Result(Value):
    """One evaluation, as the table shows it."""

    name: str
    title: str
    step: int
    solved: float
    episodes: int
    low: float
    high: float
    failures: dict[str, int]
    rl_gain: Interval | None = None
    """The rate after reinforcement minus this one, paired by task; None for `rl` itself and
    where the tasks are not the same."""


class FailureCount(Value):
    """How often one cause of failure was met, by where it was met."""

    where: str
    kind: str
    cause: str
    count: int
    of: int
    """Episodes of that place in all."""


class ReportData(Value):
    """Everything of a report except the episodes' contents."""

    run: str
    config: dict[str, Any]
    results: tuple[Result, ...]
    gain: Interval | None
    """RL minus warm start, paired by task; None until both were evaluated."""
    reward: tuple[Point, ...]
    held_out: tuple[Point, ...]
    timings_s: dict[str, tuple[Point, ...]]
    failures: tuple[FailureCount, ...]
    stops: dict[str, dict[str, int]]
    """Kind of episode → stop reason → count."""
    episodes: tuple[EpisodeSummary, ...]
    """Those shown, in order."""
    notes: dict[str, str]
    """Episode id → why it is shown."""


def gather(store: Store, run: str) -> ReportData:
    """Raises UserError for an unknown run. A run that has only begun has a report too."""
    config = store.run_config(run)
    stored = store.evaluations(run, Evaluation)
    summaries = store.summaries(run=run)
    latest = {name: evaluation for name, _, evaluation in stored}
    chosen = choose_episodes(summaries, latest)
    by_id = {summary.id: summary for summary in summaries}
    return ReportData(
        run=run,
        config=without_passwords(config),
        results=_results([entry for entry in stored if entry[0] != "during"], latest.get("rl")),
        gain=gain(latest["rl"], latest["warm"]) if {"rl", "warm"} <= set(latest) else None,
        reward=_reward(store, run),
        held_out=tuple(
            Point(step=step, value=e.solved, low=e.low, high=e.high)
            for name, step, e in stored
            if name in ("warm", "during", "rl")
        ),
        timings_s=_timings(store, run),
        failures=_failures(summaries),
        stops=_stops(summaries),
        episodes=tuple(by_id[episode] for episode in chosen),
        notes=chosen,
    )


def without_passwords(value: Any) -> Any:
    """The same configuration with `***` for the password of every URL in it."""
    if isinstance(value, dict):
        return {key: without_passwords(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_passwords(entry) for entry in value]
    return _PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value


def _results(
    stored: Sequence[tuple[str, int, Evaluation]], rl: Evaluation | None
) -> tuple[Result, ...]:
    order = list(TITLES)

    def place(entry: tuple[str, int, Evaluation]) -> tuple[bool, int, str, int]:
        name = entry[0].removesuffix(GREEDY)
        known = order.index(name) if name in order else len(order)
        return entry[0].endswith(GREEDY), known, name, entry[1]

    return tuple(_result(*entry, rl) for entry in sorted(stored, key=place))


def _result(name: str, step: int, evaluation: Evaluation, rl: Evaluation | None) -> Result:
    plain = name.removesuffix(GREEDY)
    title = TITLES.get(plain, plain.replace("_", " "))
    comparable = (
        rl is not None
        and name != "rl"
        and not name.endswith(GREEDY)
        and [task.task for task in rl.tasks] == [task.task for task in evaluation.tasks]
    )
    return Result(
        name=name,
        title=f"{title}, greedy" if name.endswith(GREEDY) else title,
        step=step,
        rl_gain=gain(rl, evaluation) if comparable and rl is not None else None,
        **evaluation.summary(),
    )


def _reward(store: Store, run: str) -> tuple[Point, ...]:
    low, high = (dict(store.metric(run, f"reward_{end}")) for end in ("low", "high"))
    return tuple(
        Point(step=step, value=value, low=low.get(step), high=high.get(step))
        for step, value in store.metric(run, "reward")
    )


def _timings(store: Store, run: str) -> dict[str, tuple[Point, ...]]:
    present = [n.removeprefix(SECONDS) for n in store.metric_names(run) if n.startswith(SECONDS)]
    stages = [s for s in STAGES if s in present] + [
        s for s in present if s not in STAGES and s != "total"
    ]
    return {
        stage: tuple(Point(step=s, value=v) for s, v in store.metric(run, SECONDS + stage))
        for stage in stages
    }


def _failures(summaries: Sequence[EpisodeSummary]) -> tuple[FailureCount, ...]:
    totals = Counter(summary.kind for summary in summaries)
    counts = Counter(
        (s.kind, s.failure_kind.value, s.failure_cause or "")
        for s in summaries
        if s.failure_kind is not None
    )
    return tuple(
        FailureCount(where=where, kind=kind, cause=cause, count=count, of=totals[where])
        for (where, kind, cause), count in counts.most_common()
    )


def _stops(summaries: Sequence[EpisodeSummary]) -> dict[str, dict[str, int]]:
    stops: dict[str, Counter[str]] = {}
    for summary in summaries:
        stops.setdefault(summary.kind, Counter())[summary.stop] += 1
    return {kind: dict(counts.most_common()) for kind, counts in sorted(stops.items())}
