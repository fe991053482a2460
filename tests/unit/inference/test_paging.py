"""Blocks, prefixes, preemption and cancellation under random loads.

The backend here is a model whose next token is a hash of all tokens that it reads through the
block tables, and of the weights. One wrong block, one stale token, one mixture of versions, and
what is sampled differs from the hash of the sequence itself.
"""

import asyncio
import hashlib
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.inference import Engine
from journeyman.model import BLOCK, StepResult
from journeyman.model.checkpoint import digest, load_state
from journeyman.types import PolicyVersion

VOCABULARY = 300


def next_token(context, weights):
    text = f"{weights} {' '.join(map(str, context))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % VOCABULARY


class HashBackend:
    """Keeps tokens where a model keeps keys and values, and who wrote them."""

    def load(self, state):
        self.weights = float(state["model.norm.weight"][0])

    def allocate(self, num_blocks):
        self.cache = [None] * (num_blocks * BLOCK)

    def step(self, batch):
        slots = batch.slots.tolist()
        assert len(set(slots)) == len(slots), "two tokens of a step share a slot"
        for slot, token in zip(slots, batch.token_ids.tolist(), strict=True):
            self.cache[slot] = (token, self.weights)
        starts = batch.query_starts.tolist()
        ends = dict(zip(starts[1:], range(len(starts) - 1), strict=True))
        sampled = [self._say(batch, ends[row + 1]) for row in batch.sample_rows.tolist()]
        return StepResult(torch.tensor(sampled, dtype=torch.int32), torch.zeros(len(sampled)))

    def _say(self, batch, sequence):
        length = int(batch.context_lens[sequence])
        table = batch.block_tables[sequence].tolist()
        read = [self.cache[table[p // BLOCK] * BLOCK + p % BLOCK] for p in range(length)]
        assert {weights for _, weights in read} == {self.weights}, "versions are mixed"
        return next_token([token for token, _ in read], self.weights)


@dataclass(frozen=True)
class Load:
    prompts: list
    lengths: list
    doomed: list
    blocks: int
    max_sequences: int
    step_tokens: int
    swaps: int
    pause: int
    """Tokens that are sampled before each swap, and before the cancellations."""


@st.composite
def loads(draw):
    stems = [[stem] * draw(st.integers(1, 70)) for stem in range(draw(st.integers(1, 3)))]
    tails = st.lists(st.integers(0, 1), max_size=20)
    stem = st.integers(0, len(stems) - 1)
    max_sequences = draw(st.integers(1, 8))
    requests = st.tuples(stem, tails, st.integers(1, 60), st.sampled_from([False, False, True]))
    chosen = draw(st.lists(requests, min_size=4, max_size=16))
    return Load(
        prompts=[stems[which] + tail for which, tail, _, _ in chosen],
        lengths=[length for _, _, length, _ in chosen],
        doomed=[doomed for _, _, _, doomed in chosen],
        # The largest request needs 150 tokens: 10 blocks.
        blocks=draw(st.integers(10, 20)),
        max_sequences=max_sequences,
        step_tokens=draw(st.integers(max_sequences, 60)),
        swaps=draw(st.integers(0, 3)),
        pause=draw(st.integers(0, 100)),
    )


def published(tiny, number):
    state = dict(load_state(tiny))
    state["model.norm.weight"] = torch.full_like(state["model.norm.weight"], float(number))
    return state, PolicyVersion(number=number, digest=digest(state))


async def sampled(engine, tasks, count):
    """Wait for `count` more tokens, or for the end of all requests."""
    goal = engine.stats()["sampled_tokens"] + count
    while engine.stats()["sampled_tokens"] < goal:
        if all(task.done() for task in tasks):
            return
        await asyncio.sleep(0.0005)


async def run(engine, load, weights):
    tasks = [
        asyncio.create_task(engine.generate(prompt, max_tokens=length, seed=0))
        for prompt, length in zip(load.prompts, load.lengths, strict=True)
    ]
    for state, version in weights(load.swaps):
        await sampled(engine, tasks, load.pause)
        await engine.load_weights(state, version)
    await sampled(engine, tasks, load.pause)
    for task, is_doomed in zip(tasks, load.doomed, strict=True):
        if is_doomed:
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    # Commands are obeyed in order: after this one all cancellations have been.
    await engine.generate([1], max_tokens=1)
    return results


@pytest.fixture(scope="module")
def weights(tiny):
    made = [published(tiny, number) for number in (1, 2, 3)]
    return lambda count: made[:count]  # a short repr for hypothesis


@given(load=loads())
@settings(max_examples=40)
def test_every_sequence_is_computed_from_its_own_tokens(tiny, weights, load):
    backend = HashBackend()
    with Engine(
        tiny,
        backend=backend,
        kv_tokens=load.blocks * BLOCK,
        max_sequences=load.max_sequences,
        step_tokens=load.step_tokens,
    ) as engine:
        first = backend.weights
        results = asyncio.run(run(engine, load, weights))
        stats = engine.stats()
    assert stats["kv_free"] == 1.0
    assert stats["running"] == stats["waiting"] == 0
    for prompt, length, doomed, result in zip(
        load.prompts, load.lengths, load.doomed, results, strict=True
    ):
        if doomed and isinstance(result, asyncio.CancelledError):
            continue
        assert len(result.token_ids) == length
        known = list(prompt)
        for token, version in zip(result.token_ids, result.versions, strict=True):
            assert token == next_token(known, float(version) if version else first)
            known.append(token)
