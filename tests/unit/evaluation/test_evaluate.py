"""Every sample is counted once, whatever becomes of it."""

import asyncio
from collections import Counter

import pytest

from journeyman.evaluation import Evaluation, evaluate, gain
from journeyman.types import (
    Budget,
    Episode,
    Failure,
    FailureKind,
    Message,
    SandboxError,
    StopReason,
    Task,
    UserError,
    Verdict,
    VerifierError,
)


def task(name: str, deadline_s: float = 60.0) -> Task:
    return Task(
        id=name,
        instruction="mend it",
        directory=f"/tasks/{name}",
        split="held_out",
        digest=name,
        budget=Budget(deadline_s=deadline_s),
    )


def episode(of: Task, sample: int, reward: float | None = 1.0, **changes: object) -> Episode:
    return Episode.model_validate(
        {
            "id": f"{of.id}-{sample}",
            "task": of.id,
            "group": of.id,
            "kind": "held_out",
            "prompt": (Message(role="user", content="mend it"),),
            "turns": (),
            "streams": (),
            "stop": StopReason.SUBMITTED,
            "verdict": Verdict(reward=reward, tree="t"),
            "started_at": 0.0,
        }
        | changes
    )


def run(tasks, samples, attempt, **options) -> Evaluation:
    return asyncio.run(evaluate(tasks, samples, attempt, **options))


def test_rates_per_task_and_in_all() -> None:
    async def attempt(of: Task, sample: int) -> Episode:
        await asyncio.sleep(0)
        return episode(of, sample, reward=float(of.id == "a" and sample < 2))

    found = run([task("a"), task("b")], 4, attempt)
    assert (found.solved, found.episodes, found.failures) == (0.25, 8, {})
    assert found.low <= 0.25 <= found.high
    assert found.matrix().tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert [o.episode for o in found.tasks[0].samples] == ["a-0", "a-1", "a-2", "a-3"]
    assert found.summary() == {
        "solved": 0.25,
        "episodes": 8,
        "low": found.low,
        "high": found.high,
        "failures": {},
    }
    assert Evaluation.model_validate_json(found.model_dump_json()) == found


def test_failures_stay_in_the_denominator_by_kind() -> None:
    async def attempt(of: Task, sample: int) -> Episode:
        if of.id == "infra":
            raise SandboxError("the sandbox died")
        if of.id == "verifier":
            raise VerifierError("no verdict")
        if of.id == "null":
            return episode(of, sample, reward=None)
        if of.id == "policy":
            failure = Failure(kind=FailureKind.POLICY, cause="Deadline")
            return episode(of, sample, 0.0, failure=failure, stop=StopReason.DEADLINE)
        return episode(of, sample)

    tasks = [task(name) for name in ("infra", "verifier", "null", "policy", "good")]
    found = run(tasks, 2, attempt, max_retries=1)
    assert (found.solved, found.episodes) == (0.2, 10)
    assert found.failures == {"infra": 2, "policy": 2, "verifier": 4}
    assert found.retries == 2
    assert found.tasks[0].samples[0].failure.cause == "SandboxError"


def test_only_infra_failures_are_tried_again_and_at_most_so_often() -> None:
    calls: Counter[str] = Counter()

    async def attempt(of: Task, sample: int) -> Episode:
        calls[of.id] += 1
        if of.id == "mends" and calls[of.id] == 1:
            raise SandboxError("once")
        if of.id == "never":
            raise SandboxError("always")
        if of.id == "verifier":
            raise VerifierError("crash")
        return episode(of, sample, reward=float(of.id == "mends"))

    found = run([task(n) for n in ("mends", "never", "verifier", "wrong")], 1, attempt)
    assert calls == {"mends": 2, "never": 3, "verifier": 1, "wrong": 1}
    assert found.solved == 0.25
    assert [row.samples[0].retries for row in found.tasks] == [1, 2, 0, 0]


def test_an_infra_failure_recorded_in_the_episode_is_tried_again_too() -> None:
    calls: Counter[str] = Counter()
    failure = Failure(kind=FailureKind.INFRA, cause="SandboxGone")

    async def attempt(of: Task, sample: int) -> Episode:
        calls[of.id] += 1
        if calls[of.id] == 1:
            return episode(of, sample, verdict=None, failure=failure, stop=StopReason.FAILED)
        return episode(of, sample)

    assert run([task("a")], 1, attempt).solved == 1.0


def test_an_episode_that_hangs_is_ended_and_counted() -> None:
    async def attempt(of: Task, sample: int) -> Episode:
        if of.id == "hangs":
            await asyncio.Event().wait()
        return episode(of, sample)

    found = run([task("hangs", 0.05), task("good")], 1, attempt, grace_s=0.05, max_retries=1)
    assert (found.solved, found.failures) == (0.5, {"infra": 1})
    assert found.tasks[0].samples[0].failure.cause == "EpisodeHung"


def test_a_timeout_of_the_attempts_own_is_a_bug() -> None:
    async def attempt(of: Task, sample: int) -> Episode:
        raise TimeoutError("not ours")

    with pytest.raises(ExceptionGroup) as raised:
        run([task("a")], 1, attempt)
    assert isinstance(raised.value.exceptions[0], TimeoutError)


def test_a_bug_ends_the_evaluation_and_cancels_the_rest() -> None:
    cancelled = []

    async def attempt(of: Task, sample: int) -> Episode:
        if of.id == "bug":
            raise ZeroDivisionError("ours")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(of.id)
            raise
        raise AssertionError

    with pytest.raises(ExceptionGroup) as raised:
        run([task("waits"), task("bug")], 1, attempt)
    assert isinstance(raised.value.exceptions[0], ZeroDivisionError)
    assert cancelled == ["waits"]


def test_concurrency_is_bounded() -> None:
    now, peak = 0, 0

    async def attempt(of: Task, sample: int) -> Episode:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.001)
        now -= 1
        return episode(of, sample)

    run([task(str(n)) for n in range(10)], 3, attempt, max_concurrency=4)
    assert peak == 4


def test_nothing_to_evaluate_is_an_error() -> None:
    async def attempt(of: Task, sample: int) -> Episode:
        return episode(of, sample)

    with pytest.raises(UserError, match="0 tasks × 4 samples"):
        run([], 4, attempt)
    with pytest.raises(UserError, match=r"more than once: \['a'\]"):
        run([task("a"), task("a")], 1, attempt)


def test_gain_is_paired_by_task() -> None:
    async def weak(of: Task, sample: int) -> Episode:
        return episode(of, sample, reward=float(of.id < "2"))

    async def strong(of: Task, sample: int) -> Episode:
        return episode(of, sample, reward=float(of.id < "5"))

    tasks = [task(str(n)) for n in range(10)]
    before, after = run(tasks, 2, weak), run(tasks, 2, strong)
    found = gain(after, before)
    assert found.value == pytest.approx(0.3)
    assert 0 <= found.low < 0.3 < found.high <= 0.7
    with pytest.raises(UserError, match="not of the same tasks"):
        gain(run(tasks[:9], 2, strong), before)
