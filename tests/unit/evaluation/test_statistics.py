"""Known values, coverage and the corners of the statistics."""

import numpy as np
import pytest

from journeyman.evaluation import paired_difference, pass_at_k, rate
from journeyman.evaluation.statistics import outcomes_matrix
from journeyman.types import UserError


def test_rate_is_the_mean_with_an_interval_around_it() -> None:
    outcomes = np.repeat([[1.0], [0.0], [0.0], [1.0]], 4, axis=1)
    found = rate(outcomes)
    assert found.value == 0.5
    assert (found.low, found.high) == (0.0, 1.0)  # four tasks say little: binomial(4, ½) / 4


def test_bootstrap_agrees_with_the_normal_theory() -> None:
    dice = np.random.default_rng(3)
    outcomes = (dice.random((400, 4)) < dice.random((400, 1))).astype(float)
    means = outcomes.mean(axis=1)
    error = means.std() / np.sqrt(400)
    found = rate(outcomes)
    assert found.low == pytest.approx(means.mean() - 1.96 * error, abs=0.002)
    assert found.high == pytest.approx(means.mean() + 1.96 * error, abs=0.002)


def test_samples_of_one_task_are_not_counted_as_independent() -> None:
    by_task = np.repeat(np.eye(2)[np.arange(64) % 2][:, :1], 64, axis=1)  # all or nothing
    alternating = np.arange(64 * 64).reshape(64, 64) % 2
    wide = rate(by_task)
    assert wide.value == 0.5
    assert wide.high - wide.low > 0.2
    assert rate(alternating).high - rate(alternating).low < 0.3  # Wilson over 64 tasks


def test_intervals_cover_the_truth() -> None:
    dice = np.random.default_rng(11)
    covered = 0
    for seed in range(200):
        chances = dice.beta(0.6, 1.8, size=(64, 1))  # mean 0.25
        found = rate((dice.random((64, 4)) < chances), seed=seed, resamples=1000)
        covered += found.low <= 0.25 <= found.high
    assert 0.90 <= covered / 200 <= 0.99


def test_same_seed_same_interval() -> None:
    outcomes = np.arange(40).reshape(10, 4) % 3 == 0
    assert rate(outcomes, seed=5) == rate(outcomes, seed=5)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_no_certainty_from_equal_outcomes(level: float) -> None:
    found = rate(np.full((64, 4), level))
    assert found.value == level
    # Wilson for 0 of 64: 1.96² / (64 + 1.96²)
    assert found.high - found.low == pytest.approx(3.8415 / 67.8415, abs=1e-4)


def test_paired_difference_uses_the_pairs() -> None:
    dice = np.random.default_rng(1)
    before = (dice.random((64, 4)) < dice.random((64, 1))).astype(float)
    after = before.copy()
    after[:16, 0] = 1.0
    paired = paired_difference(after, before)
    assert paired.value == pytest.approx(after.mean() - before.mean())
    assert paired.low > 0
    unpaired = rate(after).high - rate(after).low
    assert paired.high - paired.low < unpaired / 3


def test_paired_difference_of_equals_spans_zero() -> None:
    outcomes = np.eye(8)
    found = paired_difference(outcomes, outcomes)
    assert found.value == 0
    assert found.low < 0 < found.high


def test_pairs_must_match() -> None:
    with pytest.raises(UserError, match="3 tasks with 2"):
        paired_difference(np.ones((3, 1)), np.ones((2, 1)))


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    # 2 of 4 solved: pass@2 = 1 − C(2,2)/C(4,2) = 5/6; none solved: 0
    outcomes = [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert pass_at_k(outcomes, 2).value == pytest.approx(5 / 12)
    assert pass_at_k(outcomes, 1).value == pytest.approx(0.25)
    assert pass_at_k(outcomes, 4).value == pytest.approx(0.5)
    with pytest.raises(UserError, match="pass@5 cannot be told from 4 samples"):
        pass_at_k(outcomes, 5)


def test_a_missing_verdict_counts_as_not_solved() -> None:
    assert outcomes_matrix([[1.0, None], [0.5, 0.0]]).tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("bad", [[], [[]], [[float("nan")]], [[2.0]], [0.0, 1.0]])
def test_unfit_outcomes_are_refused(bad) -> None:
    with pytest.raises(UserError):
        rate(bad)
