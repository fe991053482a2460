"""What steps do to the policy, and what they refuse."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from journeyman.model import checkpoint
from journeyman.trainer import NonFiniteError, Trainer
from journeyman.types import Batch, UserError
from tests.unit.trainer.conftest import batch, sample

PROMPT = [1, 2, 3]
GOOD = [4, 5, 6]
BAD = [7, 8, 9]


def answer(tokens: list[int], trainer: Trainer, advantage: float, version: int = 0) -> Batch:
    """One sampled answer with the log-probabilities of the trainer's present policy."""
    marked = range(len(PROMPT), len(PROMPT) + len(tokens))
    bare = sample(PROMPT + tokens, marked)
    (logprobs,) = trainer.log_probabilities([bare])
    given = dict(zip(marked, logprobs, strict=True))
    return sample(PROMPT + tokens, marked, logprobs=given, advantage=advantage, version=version)


def total(trainer: Trainer, tokens: list[int]) -> float:
    return sum(trainer.log_probabilities([answer(tokens, trainer, 0.0)])[0])


def test_supervised_steps_memorise_a_batch(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=3e-3, warmup_steps=2)
    of = batch(*(sample([1, 2, i, *range(10 + i, 20 + i)], range(3, 13)) for i in range(4)))
    first = trainer.step(of, "supervised")
    for _ in range(60):
        last = trainer.step(of, "supervised")
    assert first.loss > 3
    assert last.loss < 0.05
    assert last.mean_logprob == pytest.approx(-last.loss)
    assert last.step == 61


def test_a_policy_step_raises_what_was_good_and_lowers_what_was_bad(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3)
    good, bad = total(trainer, GOOD), total(trainer, BAD)
    of = batch(answer(GOOD, trainer, 1.0), answer(BAD, trainer, -1.0))
    metrics = trainer.step(of, "policy")
    assert total(trainer, GOOD) > good + 0.1
    assert total(trainer, BAD) < bad - 0.1
    assert metrics.tokens == 6
    assert metrics.mean_ratio == pytest.approx(1.0, abs=1e-5)
    assert metrics.clip_fraction == 0
    assert metrics.loss == pytest.approx(0.0, abs=1e-5)


def test_tokens_that_moved_beyond_the_bounds_are_counted_and_give_no_gradient(
    wide_model: Path,
) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3, clip_ratio=(0.2, 0.28))
    (now,) = trainer.log_probabilities([sample(PROMPT + GOOD, [3, 4, 5])])
    moved = {3: now[0] - 1.0, 4: now[1] - 1.0, 5: now[2] - 1.0}
    of = batch(sample(PROMPT + GOOD, [3, 4, 5], logprobs=moved, advantage=1.0))
    metrics = trainer.step(of, "policy")
    assert metrics.clip_fraction == 1.0
    assert metrics.gradient_norm == 0.0
    assert metrics.mean_ratio == pytest.approx(2.71828, rel=1e-3)


def test_parity_is_measured_on_tokens_of_the_present_version_only(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=0.0)
    (now,) = trainer.log_probabilities([sample(PROMPT + GOOD, [3, 4, 5])])
    off = {3: now[0], 4: now[1] + 0.25, 5: now[2]}
    present = sample(PROMPT + GOOD, [3, 4, 5], logprobs=off, advantage=1.0, version=0)
    older = sample(PROMPT + BAD, [3, 4, 5], advantage=1.0, version=5)
    metrics = trainer.step(batch(present, older), "policy")
    assert metrics.parity_tokens == 3
    assert metrics.max_logprob_difference == pytest.approx(0.25, abs=1e-6)
    assert metrics.mean_logprob_difference == pytest.approx(0.25 / 3, abs=1e-6)
    assert trainer.step(batch(older), "policy").max_logprob_difference is None


def test_sharing_is_reported(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3)
    of = batch(*(sample([*range(20), 30 + i, 40], [21]) for i in range(8)), sample([1, 2], []))
    metrics = trainer.step(of, "supervised")
    assert (metrics.nodes, metrics.stream_tokens, metrics.empty_samples) == (28, 168, 1)
    assert metrics.saved == pytest.approx(1 - 28 / 168)


def test_a_batch_without_sampled_tokens_is_refused(wide_model: Path) -> None:
    with pytest.raises(UserError, match="batch 3 holds no sampled token"):
        Trainer(wide_model, learning_rate=1e-3).step(batch(sample([1, 2], []), step=3), "policy")


def test_temperature_zero_is_refused(wide_model: Path) -> None:
    with pytest.raises(UserError, match="temperature 0"):
        Trainer(wide_model, learning_rate=1e-3, temperature=0.0)


def test_a_bad_weight_is_named_and_nothing_is_applied(wide_model: Path, tmp_path: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3, dump_dir=tmp_path)
    named = dict(trainer.parameters.named(trainer.parameters.compute))
    named["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    trainer.passes.refresh()
    before = trainer.parameters.master.clone()
    of = batch(sample([1, 2, 3], [2]))
    with pytest.raises(NonFiniteError, match=r"first in: weight model\.layers\.1\.mlp\.up_proj"):
        trainer.step(of, "supervised")
    assert torch.equal(trainer.parameters.master, before)
    assert trainer.num_versions == 0
    dumped = Batch.model_validate_json((tmp_path / "not-finite-1" / "batch.json").read_text())
    assert dumped == of


def test_an_infinite_advantage_is_refused_before_any_change(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3)
    before = trainer.weights()[0]
    of = batch(sample([1, 2, 3], [2], advantage=float("inf"), logprobs={2: -1.0}))
    with pytest.raises(NonFiniteError, match="gradient of the log-probabilities"):
        trainer.step(of, "policy")
    assert trainer.weights()[0] == before


def test_overflow_inside_a_layer_names_the_layer(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3)
    named = dict(trainer.parameters.named(trainer.parameters.compute))
    named["model.layers.0.mlp.down_proj.weight"].fill_(3e38)
    trainer.passes.refresh()
    with pytest.raises(NonFiniteError, match=r"output of model\.layers\.0\.mlp"):
        trainer.step(batch(sample([1, 2, 3], [2])), "supervised")


def test_weights_are_a_snapshot_with_the_digest_of_its_bytes(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3)
    version, weights = trainer.weights()
    assert (version.number, version.recipe) == (0, "bf16")
    assert version.digest == checkpoint.digest(weights)
    start = load_file(wide_model / "model.safetensors")
    assert all(torch.equal(weights[name], value.bfloat16()) for name, value in start.items())
    kept = {name: value.clone() for name, value in weights.items()}
    trainer.step(batch(sample([1, 2, 3], [2])), "supervised")
    assert all(torch.equal(weights[name], value) for name, value in kept.items())
    later, _ = trainer.weights()
    assert later.number == 1
    assert later.digest != version.digest


def test_warm_up_and_learning_rate_of_one_step(wide_model: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=4e-3, warmup_steps=3)
    of = batch(sample([1, 2, 3], [2]))
    rates = [trainer.step(of, "supervised").learning_rate for _ in range(4)]
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])
    assert trainer.step(of, "supervised", learning_rate=1e-4).learning_rate == 1e-4


def test_export_opens_in_transformers_with_our_logits(wide_model: Path, tmp_path: Path) -> None:
    trainer = Trainer(wide_model, learning_rate=1e-3)
    trainer.step(batch(sample([1, 2, 3], [2])), "supervised")
    trainer.export(tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64)
    tokens = [5, 9, 2, 44, 17, 3]
    exported = Trainer(
        tmp_path / "out", learning_rate=0.0, compute=torch.float64, master=torch.float64
    )
    (ours,) = exported.log_probabilities([sample(tokens, range(1, 6))])
    with torch.no_grad():
        logits = theirs(torch.tensor([tokens])).logits[0]
    wanted = logits.log_softmax(-1)[range(5), tokens[1:]]
    torch.testing.assert_close(torch.tensor(ours), wanted.float(), rtol=1e-4, atol=1e-4)
