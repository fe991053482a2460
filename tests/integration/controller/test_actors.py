"""Engine and trainer on Ray, with the real model: what is published is what speaks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from journeyman.config import EngineConfig, OptimiserConfig
from journeyman.controller.actors import RaySampler, engine_actor, start_ray, trainer_actor
from journeyman.controller.learner import RayLearner
from journeyman.types import (
    Batch,
    Completion,
    CompletionRequest,
    EngineError,
    Message,
    Sample,
    TokenStream,
)

CONFIG = EngineConfig(kv_tokens=4096, max_sequences=8)
POLICY = {"learning_rate": 1e-4}


@pytest.fixture(scope="module")
def actors(model_dir: Path) -> Iterator[tuple[Any, Any]]:
    start_ray()
    yield (
        engine_actor(model_dir, CONFIG),
        trainer_actor(model_dir, OptimiserConfig(), 0, POLICY),
    )
    ray.shutdown()


def request(conversation: str, text: str = "Say red.") -> CompletionRequest:
    return CompletionRequest(
        messages=(Message(role="user", content=text),),
        conversation=conversation,
        max_tokens=12,
        seed=1,
    )


def sample(completion: Completion, advantage: float) -> Sample:
    prompt, sampled = completion.prompt_token_ids, completion.token_ids
    zeros = (0.0,) * len(prompt)
    return Sample(
        episode="e",
        group="g",
        stream=TokenStream(
            token_ids=prompt + sampled,
            loss_mask=(False,) * len(prompt) + (True,) * len(sampled),
            logprobs=zeros + completion.logprobs,
            versions=(-1,) * len(prompt) + completion.versions,
        ),
        advantage=advantage,
    )


def test_a_step_raises_the_rewarded_tokens_in_the_engine_that_serves_them(
    actors: tuple[Any, Any],
) -> None:
    engine, trainer = actors

    async def main() -> None:
        sampler = RaySampler(engine)
        before = await sampler.complete(request("before"))
        learner = RayLearner(trainer, engine, "policy")
        figures = await learner.step(
            Batch(step=1, samples=(sample(before, 1.0),)), learning_rate=1e-4
        )
        assert figures["train_parity_tokens"] == len(before.token_ids)
        assert figures["train_max_logprob_difference"] < 0.15
        version = await learner.publish()
        assert version.number == 1
        assert await engine.ready.remote() == version
        after = await learner.step(Batch(step=2, samples=(sample(before, 1.0),)), 1e-9)
        assert after["train_mean_logprob"] > figures["train_mean_logprob"] + 0.01
        later = await sampler.complete(request("after"))
        assert set(later.versions) == {1}

    asyncio.run(main())


def test_weights_that_differ_from_what_was_published_are_caught(actors: tuple[Any, Any]) -> None:
    engine, trainer = actors

    async def main() -> None:
        state, version = await trainer.weights.remote()
        name = sorted(state)[3]
        state[name] = state[name] + 1
        with pytest.raises(EngineError, match="digest"):
            await engine.load_weights.remote(state, version)
        with pytest.raises(EngineError):
            await RaySampler(engine).complete(request("refused"))
        assert (await RayLearner(trainer, engine, "policy").publish()) == version
        assert (await RaySampler(engine).complete(request("again"))).token_ids

    asyncio.run(main())


def test_a_dead_engine_is_named_with_the_cure(model_dir: Path) -> None:
    start_ray()
    engine = engine_actor(model_dir, CONFIG)
    ray.get(engine.ready.remote())
    ray.kill(engine)
    with pytest.raises(EngineError, match="the inference engine died") as caught:
        asyncio.run(RaySampler(engine).complete(request("dead")))
    assert "--resume" in caught.value.cure
