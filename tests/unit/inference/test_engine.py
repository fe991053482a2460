"""The engine's promises, on a tiny model in float32."""

import asyncio

import pytest
import torch

from journeyman.types import EngineError, PolicyVersion, UserError

pytestmark = pytest.mark.anyio
PROMPT = list(range(20, 60))


def prompts(count):
    return [[100 + n, *PROMPT[: 10 + n % 25]] for n in range(count)]


async def generate_all(engine, requests, **options):
    options = {"max_tokens": 30, **options}
    return await asyncio.gather(
        *(engine.generate(ids, seed=n, **options) for n, ids in enumerate(requests))
    )


async def until(engine, name, at_least=1):
    """Wait for a counter that the engine's own thread moves."""
    while engine.stats()[name] < at_least:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def tokens(generations):
    return [g.token_ids for g in generations]


async def test_batched_equals_alone(make_engine):
    engine = make_engine()
    together = await generate_all(engine, prompts(33))
    for n in (0, 16, 32):
        alone = await engine.generate(prompts(33)[n], max_tokens=30, seed=n)
        assert alone.token_ids == together[n].token_ids
        assert alone.logprobs == pytest.approx(together[n].logprobs, abs=1e-3)


async def test_seeds_fix_the_tokens_and_no_seed_varies(make_engine):
    engine = make_engine()
    same = [await engine.generate(PROMPT, max_tokens=20, seed=3) for _ in range(2)]
    other = await engine.generate(PROMPT, max_tokens=20, seed=4)
    free = [await engine.generate(PROMPT, max_tokens=20) for _ in range(2)]
    assert same[0].token_ids == same[1].token_ids
    assert len({same[0].token_ids, other.token_ids, *tokens(free)}) == 4


async def test_chunked_prefill_equals_whole(make_engine):
    whole = await generate_all(make_engine(), prompts(12))
    chunked = await generate_all(make_engine(step_tokens=7, max_sequences=5), prompts(12))
    assert tokens(whole) == tokens(chunked)


async def test_steps_keep_to_their_limits(make_engine, recorder):
    engine = make_engine(backend=recorder, step_tokens=24, max_sequences=6)
    await generate_all(engine, prompts(20))
    assert max(len(batch.token_ids) for batch in recorder.steps) <= 24
    assert max(len(batch.context_lens) for batch in recorder.steps) <= 6
    mixed = [b for b in recorder.steps if {1} < set(b.query_starts.diff().tolist())]
    assert mixed, "no step mixed decode tokens with a prompt"


async def test_preemption_loses_nothing(make_engine):
    roomy = await generate_all(make_engine(), prompts(16), max_tokens=60)
    tight_engine = make_engine(kv_tokens=256)
    tight = await generate_all(tight_engine, prompts(16), max_tokens=60)
    assert tight_engine.stats()["preemptions"] > 0
    assert tokens(tight) == tokens(roomy)
    assert tight_engine.stats()["kv_free"] == 1.0


async def test_a_groups_prompt_is_computed_once(make_engine, recorder):
    engine = make_engine(backend=recorder)
    group = await generate_all(engine, [PROMPT] * 8, max_tokens=5)
    computed = torch.cat([batch.token_ids[batch.positions < 32] for batch in recorder.steps])
    assert len(computed) == 32
    assert engine.stats()["reused_tokens"] == 7 * 32
    assert len(set(tokens(group))) > 1


async def test_a_prefix_hit_equals_a_cold_start(make_engine):
    cold = await make_engine().generate(PROMPT, max_tokens=30, seed=5)
    engine = make_engine()
    await engine.generate(PROMPT[:35] + [9] * 20, max_tokens=3, seed=1)
    hit = await engine.generate(PROMPT, max_tokens=30, seed=5)
    assert engine.stats()["reused_tokens"] == 32
    assert hit.token_ids == cold.token_ids


async def test_the_next_turn_reuses_sampled_tokens(make_engine):
    engine = make_engine()
    first = await engine.generate(PROMPT, max_tokens=30, seed=5)
    await engine.generate([*PROMPT, *first.token_ids, 1, 2], max_tokens=1, seed=5)
    # 70 known tokens; the last sampled one was never computed: 4 full blocks.
    assert engine.stats()["reused_tokens"] == 64


async def test_a_prompt_that_is_wholly_cached_still_samples(make_engine):
    engine = make_engine()
    first = await engine.generate(PROMPT[:32], max_tokens=4, seed=2)
    again = await engine.generate(PROMPT[:32], max_tokens=4, seed=2)
    assert again.token_ids == first.token_ids
    assert engine.stats()["reused_tokens"] == 16


async def test_stop_ids_lengths_and_context(make_engine):
    engine = make_engine()
    free = await engine.generate(PROMPT, max_tokens=30, seed=6)
    assert (len(free.token_ids), free.stop) == (30, "length")
    stop_id = free.token_ids[11]
    cut = free.token_ids.index(stop_id) + 1
    stopped = await engine.generate(PROMPT, max_tokens=30, seed=6, stop_ids=(stop_id,))
    assert (stopped.token_ids, stopped.stop) == (free.token_ids[:cut], "stop")
    long = [5] * 500
    full = await engine.generate(long, max_tokens=30, seed=6)
    assert (len(full.token_ids), full.stop) == (12, "context")
    none = await engine.generate([5] * 512, max_tokens=30, seed=6)
    assert (none.token_ids, none.stop) == ((), "context")


async def test_cancelling_frees_at_once_and_hurts_nobody(make_engine):
    engine = make_engine(max_sequences=4)
    expected = await engine.generate(PROMPT, max_tokens=40, seed=1)
    doomed = [asyncio.create_task(engine.generate(p, max_tokens=400)) for p in prompts(9)]
    await until(engine, "running", 4)
    kept = asyncio.create_task(engine.generate(PROMPT, max_tokens=40, seed=1))
    for task in doomed:
        task.cancel()
    ended = await asyncio.gather(*doomed, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    assert (await kept).token_ids == expected.token_ids
    stats = engine.stats()
    assert (stats["cancelled"], stats["running"], stats["waiting"]) == (9, 0, 0)
    assert stats["kv_free"] == 1.0


async def test_weights_change_under_requests_in_flight(make_engine, other_weights):
    engine = make_engine()
    old = engine.version
    tasks = [
        asyncio.create_task(engine.generate(p, max_tokens=200, seed=n))
        for n, p in enumerate(prompts(65))
    ]
    await until(engine, "sampled_tokens", 300)
    await engine.load_weights(*other_weights)
    results = await asyncio.gather(*tasks)
    assert all(len(r.token_ids) == 200 for r in results)
    assert {v for r in results for v in r.versions} == {old.number, 7}
    assert all(list(r.versions) == sorted(r.versions) for r in results)
    # The continuation is what the new weights say to all tokens so far, not to old keys.
    switch = next(r for r in results if 0 < r.versions.index(7) < 190)
    place = switch.versions.index(7)
    known = [*prompts(65)[results.index(switch)], *switch.token_ids[:place]]
    check = await engine.generate(known, max_tokens=1, temperature=1e-6)
    alone = make_engine()
    await alone.load_weights(*other_weights)
    again = await alone.generate(known, max_tokens=1, temperature=1e-6)
    assert check.token_ids == again.token_ids


async def test_cached_prefixes_do_not_outlive_their_weights(make_engine, other_weights):
    engine = make_engine()
    before = await engine.generate(PROMPT, max_tokens=20, temperature=0)
    await engine.load_weights(*other_weights)
    after = await engine.generate(PROMPT, max_tokens=20, temperature=0)
    assert engine.stats()["reused_tokens"] == 0
    fresh = make_engine()
    await fresh.load_weights(*other_weights)
    assert after.token_ids == (await fresh.generate(PROMPT, max_tokens=20, temperature=0)).token_ids
    assert after.token_ids != before.token_ids


async def test_other_bytes_than_published_stop_the_engine_until_mended(make_engine, other_weights):
    engine = make_engine()
    state, version = other_weights
    waiting = asyncio.create_task(engine.generate(PROMPT, max_tokens=400, seed=1))
    await until(engine, "running")
    changed = {**state, "model.norm.weight": state["model.norm.weight"].roll(1)}
    with pytest.raises(EngineError, match="policy version 7 was"):
        await engine.load_weights(changed, version)
    with pytest.raises(EngineError, match="serves nothing: the weights have the digest"):
        await engine.generate(PROMPT, max_tokens=1)
    assert not waiting.done()
    await engine.load_weights(state, version)
    assert (await waiting).versions[-1] == 7
    assert engine.version == version


async def test_weights_that_are_not_finite_are_named(make_engine, other_weights):
    from journeyman.model.checkpoint import digest

    state, _ = other_weights
    state["model.layers.1.mlp.up_proj.weight"][0, 3] = float("nan")
    with pytest.raises(EngineError, match=r"layers\.1\.mlp\.up_proj\.weight holds values"):
        await make_engine().load_weights(state, PolicyVersion(number=8, digest=digest(state)))


async def test_logits_that_are_not_finite_reach_everyone_as_an_error(make_engine, recorder):
    engine = make_engine(backend=recorder)
    recorder.before_step = lambda _: recorder._head.fill_(float("nan"))
    failed = await asyncio.gather(
        *(engine.generate(p, max_tokens=5) for p in prompts(3)), return_exceptions=True
    )
    assert all(isinstance(f, EngineError) and "not finite" in str(f) for f in failed)
    with pytest.raises(EngineError, match="serves nothing: the logits"):
        await engine.generate(PROMPT, max_tokens=1)


async def test_a_bug_on_the_engines_thread_is_raised_not_hung(make_engine, recorder):
    engine = make_engine(backend=recorder)
    recorder.before_step = lambda _: 1 // 0
    with pytest.raises(ZeroDivisionError):
        await engine.generate(PROMPT, max_tokens=5)


async def test_a_thread_that_dies_tells_everyone(make_engine, monkeypatch):
    engine = make_engine()
    monkeypatch.setattr(engine._scheduler, "remove", lambda _: 1 // 0)
    running = asyncio.create_task(engine.generate(PROMPT, max_tokens=400))
    await until(engine, "running")
    doomed = asyncio.create_task(engine.generate(PROMPT, max_tokens=400))
    await asyncio.sleep(0)
    monkeypatch.setattr(engine._scheduler, "drain", lambda: [*engine._scheduler.running])
    doomed.cancel()
    with pytest.raises(ZeroDivisionError):
        await running
    with pytest.raises(EngineError, match="is closed"):
        await engine.generate(PROMPT, max_tokens=1)


async def test_a_starting_version_is_checked_against_the_bytes(make_engine):
    with pytest.raises(EngineError, match="policy version 3 was"):
        make_engine(version=PolicyVersion(number=3, digest="0" * 64))


async def test_closing_fails_what_is_in_flight(make_engine):
    engine = make_engine()
    task = asyncio.create_task(engine.generate(PROMPT, max_tokens=400))
    await until(engine, "running")
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineError, match="was closed"):
        await task
    with pytest.raises(EngineError, match="is closed"):
        await engine.generate(PROMPT, max_tokens=1)


@pytest.mark.parametrize(
    ("prompt", "options", "named"),
    [
        ([], {}, "prompt is empty"),
        ([300], {}, "token id 300"),
        ([-1], {}, "token id -1"),
        ([1], {"max_tokens": 0}, "max_tokens=0"),
        ([1], {"temperature": -0.5}, "temperature=-0.5"),
        ([1], {"temperature": float("nan")}, "temperature=nan"),
        ([1], {"top_p": 0.0}, r"top_p=0\.0"),
    ],
)
async def test_arguments_without_meaning_are_refused(make_engine, prompt, options, named):
    with pytest.raises(UserError, match=named):
        await make_engine().generate(prompt, **{"max_tokens": 4, **options})


def test_sizes_without_meaning_are_refused(make_engine):
    with pytest.raises(UserError, match="step_tokens=8"):
        make_engine(max_sequences=64, step_tokens=8)
    with pytest.raises(UserError, match="kv_tokens=3"):
        make_engine(kv_tokens=3)
