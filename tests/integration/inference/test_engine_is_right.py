"""The engine on SmolLM2 against Transformers and against itself.

In float32 the comparisons are sharp: what differs is wrong. In bf16 they show how much a served
log-probability differs from another bf16 computation of the same model.
"""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from journeyman.inference import Engine
from journeyman.model.checkpoint import digest, load_state
from journeyman.types import PolicyVersion

pytestmark = pytest.mark.anyio
PROMPTS = (
    "def fibonacci(n):\n    ",
    "The three largest cities of Europe are",
    '<tool_call>{"name": "bash", "arguments": {"command": "pytest -x"}}\nE   assert 3 ==',
)


@pytest.fixture(scope="module")
def theirs(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(chat_format):
    return [chat_format.encode(text) for text in PROMPTS]


def forced_logprobs(model, prompt, sampled, temperature=1.0, top_p=1.0):
    """Logprobs [n, V] where `sampled` was chosen, by one forward over the whole text."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits.float() / temperature).log_softmax(-1)
    if top_p < 1:
        ordered, order = logprobs.sort(descending=True)
        outside = ordered.exp().cumsum(-1) - ordered.exp() >= top_p
        logprobs = logprobs.scatter(1, order, ordered.masked_fill(outside, -torch.inf))
        logprobs = logprobs - logprobs.logsumexp(-1, keepdim=True)
    return logprobs


def chosen(logprobs, generation):
    return logprobs.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]


async def generate_all(engine, prompts, max_tokens, **options):
    requests = (
        engine.generate(ids, max_tokens=max_tokens, seed=n, **options)
        for n, ids in enumerate(prompts)
    )
    return await asyncio.gather(*requests)


async def test_greedy_equals_transformers(exact_engine, theirs, prompts):
    results = await generate_all(exact_engine, prompts, 10, temperature=0)
    for prompt, result in zip(prompts, results, strict=True):
        expected = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=10, do_sample=False, eos_token_id=-1
        )
        assert list(result.token_ids) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.3, 0.9)])
async def test_logprobs_are_of_the_sampled_distribution(
    exact_engine, theirs, prompts, temperature, top_p
):
    options = {"temperature": temperature, "top_p": top_p}
    results = await generate_all(exact_engine, prompts, 10, **options)
    for prompt, result in zip(prompts, results, strict=True):
        expected = chosen(forced_logprobs(theirs, prompt, result.token_ids, **options), result)
        torch.testing.assert_close(torch.tensor(result.logprobs), expected, atol=2e-3, rtol=1e-3)


async def test_bf16_stays_near(torch_engine, theirs, prompts):
    results = await generate_all(torch_engine, prompts, 24)
    differences = []
    for prompt, result in zip(prompts, results, strict=True):
        forced = chosen(forced_logprobs(theirs, prompt, result.token_ids), result)
        differences.append(torch.tensor(result.logprobs) - forced)
    # bf16 keeps 8 bits: single tokens stray by tenths, the mean may not.
    assert torch.cat(differences).abs().mean() < 0.06
    assert abs(torch.cat(differences).mean()) < 0.02


async def test_published_weights_are_what_is_sampled_from(model_dir, theirs, prompts):
    state = {name: tensor.clone() for name, tensor in load_state(model_dir).items()}
    state["model.norm.weight"] *= 1.25
    with Engine(model_dir, kv_tokens=2048) as engine:
        await engine.load_weights(state, PolicyVersion(number=1, digest=digest(state)))
        got = await engine.generate(prompts[0], max_tokens=16, seed=0)
    # The final norm scales the logits: the same as a temperature of 1 / 1.25.
    forced = forced_logprobs(theirs, prompts[0], got.token_ids, temperature=1 / 1.25)
    difference = torch.tensor(got.logprobs) - chosen(forced, got)
    assert difference.abs().mean() < 0.08
    assert got.versions == (1,) * 16
