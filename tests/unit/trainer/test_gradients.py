"""Losses and gradients against plain autograd on each sample alone."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journeyman.model import Llama, causal_attend, checkpoint
from journeyman.trainer import Trainer
from journeyman.trainer.losses import LossKind
from journeyman.types import Batch, Sample
from tests.unit.trainer.conftest import VOCABULARY, batch, sample

CLIP = (0.2, 0.3)


def make(model: Path, **settings: object) -> Trainer:
    chosen = {
        "learning_rate": 1e-3,
        "clip_ratio": CLIP,
        "compute": torch.float64,
        "master": torch.float64,
        **settings,
    }
    return Trainer(model, **chosen)  # type: ignore[arg-type]


def gradient(trainer: Trainer, of: Batch, loss: LossKind) -> tuple[dict[str, torch.Tensor], float]:
    _, tally = trainer.backward(of, loss)
    named = trainer.parameters.named(trainer.parameters.gradient.clone())
    return dict(named), tally.sums["loss"] / tally.num_tokens


def plain_logprobs(model: Llama, stream: Sample, temperature: float) -> torch.Tensor:
    ids = torch.tensor(stream.stream.token_ids)
    hidden = model(ids, torch.arange(len(ids)), causal_attend([0, len(ids)]))
    logits = hidden @ model.lm_head_weight.T / temperature
    logprobs = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
    return logprobs[torch.tensor(stream.stream.loss_mask)[1:]]


def plain_gradient(
    model: Llama, of: Batch, loss: LossKind, temperature: float = 1.0
) -> tuple[dict[str, torch.Tensor], float]:
    """The definition: per-sample sums over sampled tokens, divided by their number."""
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for one in of.samples:
        logprobs = plain_logprobs(model, one, temperature)
        mask = torch.tensor(one.stream.loss_mask)
        if loss == "supervised":
            total = total - logprobs.sum()
            continue
        behaviour = torch.tensor(one.stream.logprobs, dtype=torch.float64)[mask]
        ratio = (logprobs - behaviour).exp()
        clipped = ratio.clamp(1 - CLIP[0], 1 + CLIP[1])
        total = total - torch.minimum(ratio * one.advantage, clipped * one.advantage).sum()
    total = total / sum(sum(one.stream.loss_mask) for one in of.samples)
    total.backward()
    return {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }, total.item()


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Streams over few tokens, so that prefixes are often shared, also inside sampled parts."""
    samples = []
    for index in range(draw(st.integers(1, 6))):
        tokens = draw(st.lists(st.integers(0, 2), min_size=2, max_size=20))
        first = draw(st.integers(1, len(tokens) - 1))
        sampled = [first, *draw(st.sets(st.integers(first, len(tokens) - 1)))]
        logprobs = {i: draw(st.floats(-6, -0.1)) for i in sampled}
        advantage = draw(st.floats(-2, 2))
        samples.append(
            sample(tokens, sampled, logprobs=logprobs, advantage=advantage, name=f"e{index}")
        )
    return batch(*samples)


def assert_equal(
    got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tolerance: float
) -> None:
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=tolerance, atol=tolerance, msg=name)


@pytest.fixture(scope="module")
def trainer(tiny_model: Path) -> Trainer:
    return make(tiny_model)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches(), st.sampled_from(["supervised", "policy"]), st.sampled_from([5, 25, 1000]))
def test_packed_equals_each_sample_alone(
    trainer: Trainer, of: Batch, loss: LossKind, max_nodes: int
) -> None:
    """FP64, so equal to rounding: shared nodes receive exactly the sum."""
    trainer.max_nodes = max_nodes
    packed, packed_loss = gradient(trainer, of, loss)
    counts = [sum(one.stream.loss_mask) for one in of.samples]
    alone = [gradient(trainer, batch(one), loss) for one in of.samples]
    wanted = {
        name: sum(n * part[name] for n, (part, _) in zip(counts, alone, strict=True)) / sum(counts)
        for name in packed
    }
    assert_equal(packed, wanted, 1e-9)  # type: ignore[arg-type]
    mean = sum(n * value for n, (_, value) in zip(counts, alone, strict=True)) / sum(counts)
    assert packed_loss == pytest.approx(mean, rel=1e-10)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batches(), st.sampled_from(["supervised", "policy"]))
def test_packed_equals_plain_autograd_of_the_model(
    trainer: Trainer, tiny_model: Path, of: Batch, loss: LossKind
) -> None:
    """The served model is the trained one. (Its norms are FP32 by definition: hence 1e-4.)"""
    model = checkpoint.load(tiny_model, torch.float64)
    trainer.max_nodes = 1000
    got, got_loss = gradient(trainer, of, loss)
    wanted, wanted_loss = plain_gradient(model, of, loss)
    assert got_loss == pytest.approx(wanted_loss, rel=1e-4, abs=1e-5)
    assert_equal(got, wanted, 1e-4)


def test_untied_head_and_temperature(untied_model: Path) -> None:
    model = checkpoint.load(untied_model, torch.float64)
    of = batch(sample([1, 2, 3, 4, 5], [2, 4], advantage=1.0, logprobs={2: -4.0, 4: -3.0}))
    got, loss = gradient(make(untied_model, temperature=0.7), of, "policy")
    wanted, wanted_loss = plain_gradient(model, of, "policy", temperature=0.7)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert set(got) == set(wanted) and "lm_head.weight" in got
    assert_equal(got, wanted, 1e-4)


def test_more_rows_than_a_chunk(tiny_model: Path) -> None:
    """Chunk borders of the head (128 and 1,024 rows) fall inside the stream."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCABULARY, (1300,), generator=generator).tolist()
    of = batch(sample(tokens, range(10, 1300)))
    model = checkpoint.load(tiny_model, torch.float64)
    got, loss = gradient(make(tiny_model), of, "supervised")
    wanted, wanted_loss = plain_gradient(model, of, "supervised")
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert_equal(got, wanted, 1e-4)


def test_bf16_gradients_are_as_good_as_autograd_of_the_model_in_bf16(tiny_model: Path) -> None:
    tokens = torch.randint(VOCABULARY, (200,), generator=torch.Generator().manual_seed(5)).tolist()
    of = batch(sample(tokens, range(50, 200)))
    exact, _ = gradient(make(tiny_model), of, "supervised")
    near, _ = gradient(
        make(tiny_model, compute=torch.bfloat16, master=torch.float32), of, "supervised"
    )
    plain, _ = plain_gradient(checkpoint.load(tiny_model, torch.bfloat16), of, "supervised")
    for name, value in exact.items():
        error, plain_error = ((got[name] - value).norm() for got in (near, plain))
        assert error < 1.2 * plain_error, name
        assert near[name].dtype == torch.float32
