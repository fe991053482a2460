"""One task to a graded episode, with the real agent server, sandboxes and verifier."""

import asyncio
from pathlib import Path

import pytest

from journeyman.chat import ChatFormat
from journeyman.config import AgentConfig
from journeyman.controller.oracle import oracle_sampler
from journeyman.episodes import Attempt, open_arena
from journeyman.types import (
    Completion,
    CompletionRequest,
    EngineError,
    Episode,
    FailureKind,
    Sampler,
    StopReason,
    Task,
)


@pytest.fixture(scope="module")
def chat(model_dir: Path) -> ChatFormat:
    return ChatFormat.load(model_dir)


def attempts(
    sampler: Sampler, chat: ChatFormat, url: str, tasks: list[Task], **agent: int
) -> list[Episode]:
    """All tasks at once."""

    async def main() -> list[Episode]:
        settings = AgentConfig.model_validate(agent)
        async with open_arena(sampler, chat, url, agent=settings, concurrency=4) as arena:
            attempt = Attempt(kind="train", group="g", index=0)
            return await asyncio.gather(*(arena.attempt(task, attempt) for task in tasks))

    return asyncio.run(main())


def test_the_oracle_is_rewarded_and_its_tokens_are_one_stream(
    chat: ChatFormat, sandbox_service: str, small_tasks: list[Task]
) -> None:
    tasks = small_tasks[:3]
    episodes = attempts(oracle_sampler(chat, tasks), chat, sandbox_service, tasks)
    for task, episode in zip(tasks, episodes, strict=True):
        assert episode.task == task.id
        assert episode.stop == StopReason.SUBMITTED
        assert episode.verdict is not None
        assert episode.verdict.reward == 1.0
        (stream,) = episode.streams
        text = chat.decode(list(stream.token_ids))
        assert task.instruction in text
        assert len(stream.token_ids) <= 768
        assert {"fork", "act", "grade"} <= set(episode.timings_s)


def test_a_dead_engine_is_an_infra_failure_of_that_episode_only(
    chat: ChatFormat, sandbox_service: str, small_tasks: list[Task]
) -> None:
    tasks = small_tasks[:2]
    oracle = oracle_sampler(chat, tasks)

    class DiesOnOneTask:
        async def complete(self, request: CompletionRequest) -> Completion:
            if request.messages[1].content == tasks[0].instruction.strip():
                raise EngineError("the engine is gone")
            return await oracle.complete(request)

    dead, alive = attempts(DiesOnOneTask(), chat, sandbox_service, tasks)
    assert dead.failure is not None
    assert dead.failure.kind == FailureKind.INFRA
    assert dead.verdict is None
    assert alive.verdict is not None
    assert alive.verdict.reward == 1.0


def test_the_tighter_of_the_runs_and_the_tasks_budget_holds(
    chat: ChatFormat, sandbox_service: str, small_tasks: list[Task]
) -> None:
    tasks = small_tasks[:1]
    (episode,) = attempts(
        oracle_sampler(chat, tasks), chat, sandbox_service, tasks, tokens=256, reply_tokens=16
    )
    assert episode.stop == StopReason.TOKENS
    assert sum(episode.streams[0].loss_mask) == 16
    assert episode.verdict is not None
    assert episode.verdict.reward == 0.0
