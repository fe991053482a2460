"""One real model: a step lowers the loss, exports open in Transformers, figures are sane."""

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from journeyman.inference import Engine
from journeyman.trainer import Trainer
from journeyman.types import Batch, Sample, TokenStream

PROMPT = [1, 4093, 198, 5345, 253, 1446, 338, 5067, 253, 1230, 30, 2, 198, 1, 520, 9531, 198]
ANSWER = [604, 3044, 24, 104, 595, 198, 1003, 104, 1232, 216, 33, 2]


def make_sample(trainer: Trainer, tokens: list[int], advantage: float) -> Sample:
    """Two tokens in, as the engine would hand them: with the present policy's logprobs."""
    length = len(PROMPT) + len(tokens)
    bare = Sample(
        episode="e",
        group="g",
        advantage=advantage,
        stream=TokenStream(
            token_ids=(*PROMPT, *tokens),
            loss_mask=(False,) * len(PROMPT) + (True,) * len(tokens),
            logprobs=(0.0,) * length,
            versions=(-1,) * len(PROMPT) + (trainer.num_versions,) * len(tokens),
        ),
    )
    (logprobs,) = trainer.log_probabilities([bare])
    stream = bare.stream.model_copy(update={"logprobs": ((0.0,) * len(PROMPT) + tuple(logprobs))})
    return bare.model_copy(update={"stream": stream})


@pytest.fixture(scope="module")
def trainer(model_dir: Path) -> Trainer:
    return Trainer(model_dir, learning_rate=3e-5)


def test_log_probabilities_agree_with_transformers(trainer: Trainer, model_dir: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    tokens = PROMPT + ANSWER
    with torch.no_grad():
        logits = theirs(torch.tensor([tokens])).logits[0]
    start = len(PROMPT)
    wanted = logits.log_softmax(-1)[range(start - 1, len(tokens) - 1), tokens[start:]]
    ours = torch.tensor(make_sample(trainer, ANSWER, 0.0).stream.logprobs[start:])
    # BF16 against FP32 through 30 layers.
    torch.testing.assert_close(ours, wanted, rtol=0.05, atol=0.15)


def test_the_engines_log_probabilities_are_the_trainers_bit_for_bit(model_dir: Path) -> None:
    """Sampled in batches, with cached prefixes, before and after a weight update."""
    trainer = Trainer(model_dir, learning_rate=1e-4)
    with Engine(model_dir, kv_tokens=4096) as engine:
        for version in range(2):
            batch = asyncio.run(sampled_batch(engine, version))
            metrics = trainer.step(batch, "policy")
            assert metrics.parity_tokens == metrics.tokens > 100
            assert metrics.max_logprob_difference == 0.0
            assert metrics.nodes < metrics.stream_tokens
            published, state = trainer.weights()
            asyncio.run(engine.load_weights(state, published))


async def sampled_batch(engine: Engine, version: int) -> Batch:
    """Two groups of four, their prompts equal but for the end; tool output between replies."""
    prompts = [PROMPT, [*PROMPT, *ANSWER[:3]]]
    samples = await asyncio.gather(
        *(sampled(engine, prompt, seed) for prompt in prompts for seed in range(4))
    )
    assert {v for s in samples for v in s.stream.versions} == {-1, version}
    return Batch(step=version, samples=tuple(samples))


async def sampled(engine: Engine, prompt: list[int], seed: int) -> Sample:
    tokens, marked = list(prompt), [False] * len(prompt)
    logprobs, versions = [0.0] * len(prompt), [-1] * len(prompt)
    for turn, tool_output in enumerate(([2, 198, 1, 520], [])):
        reply = await engine.generate(tokens, max_tokens=12 + 9 * turn, seed=seed)
        count = len(reply.token_ids)
        tokens += [*reply.token_ids, *tool_output]
        marked += [True] * count + [False] * len(tool_output)
        logprobs += [*reply.logprobs, *([0.0] * len(tool_output))]
        versions += [*reply.versions, *([-1] * len(tool_output))]
    stream = TokenStream(
        token_ids=tuple(tokens),
        loss_mask=tuple(marked),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
    )
    return Sample(
        episode=f"{len(prompt)}-{seed}", group="g", advantage=1.0 - 2 * (seed % 2), stream=stream
    )


def test_steps_move_the_policy_and_the_export_opens_in_transformers(
    trainer: Trainer, tmp_path: Path
) -> None:
    other = [198, 1232, 216, 604, 24]
    supervised = Batch(step=0, samples=(make_sample(trainer, ANSWER, 0.0),))
    first = trainer.step(supervised, "supervised")
    second = trainer.step(supervised, "supervised")
    assert second.loss < first.loss
    trainer.reset_optimiser()
    samples = (make_sample(trainer, ANSWER, 1.0), make_sample(trainer, other, -1.0))
    metrics = trainer.step(Batch(step=1, samples=samples), "policy")
    assert metrics.nodes < metrics.stream_tokens
    assert metrics.parity_tokens == metrics.tokens == len(ANSWER) + len(other)
    assert metrics.max_logprob_difference is not None
    after = [make_sample(trainer, tokens, 0.0).stream.logprobs for tokens in (ANSWER, other)]
    assert sum(after[0]) > sum(samples[0].stream.logprobs)
    assert sum(after[1]) < sum(samples[1].stream.logprobs)

    trainer.export(tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == torch.bfloat16
    _, weights = trainer.weights()
    opened = theirs.state_dict()
    assert all(torch.equal(opened[name], value) for name, value in weights.items())
    tokens = torch.tensor([PROMPT + ANSWER])
    with torch.no_grad():
        logits = theirs.float()(tokens).logits[0]
    start = len(PROMPT)
    wanted = logits.log_softmax(-1)[range(start - 1, tokens.shape[1] - 1), tokens[0, start:]]
    torch.testing.assert_close(torch.tensor(after[0][start:]), wanted, rtol=0.05, atol=0.15)
