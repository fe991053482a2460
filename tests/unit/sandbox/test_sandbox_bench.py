"""How the sandbox benchmark counts."""

from pathlib import Path

import pytest

from journeyman.sandbox.bench.lifecycles import leftovers
from journeyman.sandbox.bench.quantiles import quantiles


def test_quantiles_are_of_calls_that_were_made() -> None:
    found = quantiles([0.001 * number for number in range(100, 0, -1)])
    assert (found.p50, found.p95, found.n) == (50.5, 95.0, 100)


def test_of_one_call_both_quantiles_are_that_call() -> None:
    found = quantiles([0.25])
    assert (found.p50, found.p95, found.n) == (250.0, 250.0, 1)


def test_no_calls_are_no_figure() -> None:
    with pytest.raises(ValueError, match="no call"):
        quantiles([])


def test_what_a_life_left_behind_is_found(tmp_path: Path) -> None:
    (tmp_path / "sandboxes" / "sb-dead").mkdir(parents=True)
    assert leftovers(["sb-dead", "sb-clean"], tmp_path) == [str(tmp_path / "sandboxes/sb-dead")]
