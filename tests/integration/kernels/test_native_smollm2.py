"""The native backend on the real model, against Transformers and the torch backend."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from journeyman.model import BLOCK, ModelConfig, StepBatch
from journeyman.model.checkpoint import load_state
from journeyman.model.kernels import NativeBackend
from journeyman.model.torch_backend import TorchBackend

TEXT = "def mean(values):\n    return sum(values) / len(values)  # 12.5 on average\n" * 5


@pytest.fixture(scope="module")
def token_ids(model_dir):
    return AutoTokenizer.from_pretrained(model_dir)(TEXT).input_ids


@pytest.fixture(scope="module")
def expected(model_dir, token_ids):
    """Transformers' log-probabilities, float32 [T, V]."""
    theirs = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        return theirs(torch.tensor([token_ids])).logits[0].log_softmax(-1)


def loaded(backend_type, model_dir):
    backend = backend_type(ModelConfig.load(model_dir))
    backend.load(load_state(model_dir))
    backend.allocate(64)
    return backend


def whole(token_ids, **settings):
    """Everything prefilled at once, sampled after every token."""
    count, int32 = len(token_ids), torch.int32
    numbers = torch.arange(count, dtype=int32)
    return StepBatch(
        token_ids=torch.tensor(token_ids, dtype=int32),
        positions=numbers,
        slots=numbers,
        query_starts=torch.tensor([0, count], dtype=int32),
        context_lens=torch.tensor([count], dtype=int32),
        block_tables=torch.arange(-(-count // BLOCK), dtype=int32)[None],
        sample_rows=numbers,
        temperature=torch.full((count,), settings.get("temperature", 1.0)),
        top_p=torch.full((count,), settings.get("top_p", 1.0)),
        seeds=numbers.long(),
    )


def test_logprobs_agree_with_transformers(model_dir, token_ids, expected):
    targets = torch.tensor([*token_ids[1:], 0], dtype=torch.int32)
    scored = loaded(NativeBackend, model_dir).score(whole(token_ids), targets).logprobs
    want = expected.gather(1, targets.long()[:, None])[:, 0]
    error = (scored - want).abs()
    # bf16 activations against float32 ones.
    assert error.max() < 0.5
    assert error.mean() < 0.05


def test_closer_to_float32_than_the_torch_backend(model_dir, token_ids, expected):
    def error(result):
        want = expected.gather(1, result.token_ids.long()[:, None])[:, 0]
        return float((result.logprobs - want).abs().mean())

    batch = whole(token_ids, temperature=0.0)
    ours = loaded(NativeBackend, model_dir).step(batch)
    theirs = loaded(TorchBackend, model_dir).step(batch)
    assert error(ours) < error(theirs)
    assert float((ours.token_ids == expected.argmax(-1)).float().mean()) > 0.97


def test_sampled_tokens_are_mostly_those_of_the_torch_backend(model_dir, token_ids):
    """The same uniform numbers walk nearly the same distributions."""
    batch = whole(token_ids)
    ours = loaded(NativeBackend, model_dir).step(batch)
    theirs = loaded(TorchBackend, model_dir).step(batch)
    same = ours.token_ids == theirs.token_ids
    assert float(same.float().mean()) > 0.9
    assert float((ours.logprobs - theirs.logprobs)[same].abs().mean()) < 0.1


def test_decode_repeats_prefill_bit_for_bit(model_dir, token_ids):
    """One token a step, past position 96."""
    backend = loaded(NativeBackend, model_dir)
    targets = torch.tensor(token_ids[1:], dtype=torch.int32)
    scored = backend.score(whole(token_ids[:-1]), targets).logprobs
    backend.allocate(64)
    backend.step(whole(token_ids[:90]))
    for position in range(90, 120):
        batch = whole(token_ids[:120])
        one = StepBatch(
            token_ids=torch.tensor([token_ids[position]], dtype=torch.int32),
            positions=torch.tensor([position], dtype=torch.int32),
            slots=torch.tensor([position], dtype=torch.int32),
            query_starts=torch.tensor([0, 1], dtype=torch.int32),
            context_lens=torch.tensor([position + 1], dtype=torch.int32),
            block_tables=batch.block_tables,
            sample_rows=torch.tensor([0], dtype=torch.int32),
            temperature=torch.ones(1),
            top_p=torch.ones(1),
            seeds=torch.zeros(1, dtype=torch.int64),
        )
        got = backend.score(one, targets[position : position + 1]).logprobs
        assert torch.equal(got[0], scored[position])
