"""Which ten episodes a report shows: those from which a person learns most."""

from collections.abc import Iterator, Mapping, Sequence

from journeyman.evaluation.evaluate import Evaluation
from journeyman.store import EpisodeSummary

SHOWN = 10


def choose_episodes(
    summaries: Sequence[EpisodeSummary], evaluations: Mapping[str, Evaluation]
) -> dict[str, str]:
    """Episode id → why it is shown, at most SHOWN.

    First the same held-out task before and after reinforcement, gained and lost; then training
    at its beginning and end, a failure, and whatever fills the rest.
    """
    known = {summary.id for summary in summaries}
    chosen: dict[str, str] = {}
    for episode, why in _candidates(summaries, evaluations):
        if len(chosen) == SHOWN:
            break
        if episode in known:
            chosen.setdefault(episode, why)
    return chosen


def _candidates(
    summaries: Sequence[EpisodeSummary], evaluations: Mapping[str, Evaluation]
) -> Iterator[tuple[str, str]]:
    before, after = evaluations.get("warm"), evaluations.get("rl")
    if before and after:
        yield from _pairs(before, after, gained=True, most=2)
        yield from _pairs(before, after, gained=False, most=1)
    train = [summary for summary in summaries if summary.kind == "train"]
    for summary in _one_of_each(train[: len(train) // 4]):
        yield summary.id, "early in reinforcement"
    for summary in _one_of_each(train[::-1]):
        yield summary.id, "late in reinforcement"
    for summary in summaries:
        if summary.failure_kind in ("infra", "verifier"):
            yield summary.id, f"ended by {summary.failure_cause}"
            break
    for summary in _one_of_each(s for s in summaries if s.kind == "held_out"):
        yield summary.id, "held out"
    for summary in reversed(summaries):
        yield summary.id, summary.kind.replace("_", " ")


def _pairs(
    before: Evaluation, after: Evaluation, *, gained: bool, most: int
) -> Iterator[tuple[str, str]]:
    """Episodes of tasks whose outcome changed most, one before and one after each."""
    changes = after.matrix().mean(axis=1) - before.matrix().mean(axis=1)
    order = sorted(range(len(changes)), key=lambda i: -changes[i] if gained else changes[i])
    for index in order[:most]:
        if (changes[index] > 0) != gained or changes[index] == 0:
            return
        for evaluation, solved, when in (
            (before, not gained, "before reinforcement"),
            (after, gained, "after reinforcement"),
        ):
            for sample in evaluation.tasks[index].samples:
                if (sample.reward == 1.0) == solved and sample.episode:
                    verb = "solved" if solved else "not solved"
                    yield sample.episode, f"same task, {when}: {verb}"
                    break


def _one_of_each(
    summaries: Sequence[EpisodeSummary] | Iterator[EpisodeSummary],
) -> list[EpisodeSummary]:
    """The first solved and the first unsolved."""
    first: dict[bool, EpisodeSummary] = {}
    for summary in summaries:
        if summary.failure_kind is None or summary.failure_kind == "policy":
            first.setdefault(summary.reward == 1.0, summary)
    return list(first.values())
