"""The engine with the native backend: not one bit depends on what else is being computed."""

import asyncio

import pytest
import torch

from journeyman.inference import Engine
from journeyman.inference.batch import build_batch
from journeyman.inference.scheduler import Chunk
from journeyman.inference.sequence import Sequence
from journeyman.model import ModelConfig
from journeyman.model.checkpoint import load_state
from journeyman.model.kernels import NativeBackend

pytestmark = pytest.mark.anyio
TEXT = "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n"


@pytest.fixture(scope="module")
def requests(chat_format):
    """64 prompts of 24 to 87 tokens, four of a kind each time."""
    stem = chat_format.encode(TEXT)
    return [[*stem, *range(1000 + 100 * (n // 4), 1000 + 101 * (n // 4))] for n in range(64)]


@pytest.fixture(scope="module")
def make_engine(model_dir):
    engines = []

    def make(**options):
        engines.append(Engine(model_dir, backend="native", **{"kv_tokens": 16384, **options}))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


async def generate_all(engine, requests, max_tokens=10):
    options = {"max_tokens": max_tokens, "temperature": 1.0}
    asked = (engine.generate(ids, seed=n, **options) for n, ids in enumerate(requests))
    return await asyncio.gather(*asked)


@pytest.fixture(scope="module")
def together(make_engine, requests):
    return asyncio.run(generate_all(make_engine(), requests))


async def test_alone_in_sevens_and_preempted_say_the_same_bits(make_engine, requests, together):
    alone = make_engine(max_sequences=1)
    for n in (0, 63):
        assert await alone.generate(requests[n], max_tokens=10, seed=n) == together[n]
    sevens = make_engine(max_sequences=7, step_tokens=31)
    assert await generate_all(sevens, requests[:21]) == together[:21]
    tight = make_engine(kv_tokens=480)
    assert await generate_all(tight, requests[:32]) == together[:32]
    assert tight.stats()["preemptions"] > 0


async def test_a_prefix_hit_says_the_same_bits_as_a_cold_start(make_engine, requests, together):
    engine = make_engine()
    await generate_all(engine, requests, max_tokens=1)
    before = engine.stats()["reused_tokens"]
    assert await generate_all(engine, requests) == together
    assert engine.stats()["reused_tokens"] > before


async def test_served_logprobs_are_the_bits_of_a_teacher_forced_forward(
    model_dir, requests, together
):
    """What a trainer computes with the same kernels for a whole episode at once."""
    backend = NativeBackend(ModelConfig.load(model_dir))
    backend.load(load_state(model_dir))
    backend.allocate(16)
    for n in (0, 30, 63):
        tokens = [*requests[n], *together[n].token_ids]
        batch = build_batch([Chunk(_finished(tokens), len(tokens))])
        first = len(requests[n])
        rows = torch.arange(first - 1, len(tokens) - 1, dtype=torch.int32)
        ones = torch.ones(len(rows))
        whole = type(batch)(
            **{
                **vars(batch),
                "sample_rows": rows,
                "temperature": ones,
                "top_p": ones,
                "seeds": torch.zeros(len(rows), dtype=torch.int64),
            }
        )
        targets = torch.tensor(tokens[first:], dtype=torch.int32)
        scored = backend.score(whole, targets)
        assert tuple(scored.logprobs.tolist()) == together[n].logprobs


def _finished(tokens):
    return Sequence(
        tokens=tokens,
        num_prompt=len(tokens),
        max_tokens=1,
        temperature=1.0,
        top_p=1.0,
        seed=0,
        stop_ids=frozenset(),
        finish=lambda outcome: None,
        blocks=list(range(-(-len(tokens) // 16))),
    )
