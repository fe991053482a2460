"""Overlapping stages share the wall time; the parts add up to the whole."""

import pytest

from journeyman.observe import StageTimer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_wall_time_is_shared_among_who_is_active() -> None:
    clock = Clock()
    timer = StageTimer(clock)
    clock.now += 1  # nobody: other
    with timer.stage("generate"):
        clock.now += 2
        with timer.stage("generate"), timer.stage("generate"), timer.stage("sandbox"):
            clock.now += 4  # 3 generate, 1 sandbox
    with timer.stage("train"):
        clock.now += 10
    lap = timer.lap()
    assert lap.total_s == pytest.approx(17)
    assert lap.share_s == pytest.approx({"generate": 5.0, "sandbox": 1.0, "train": 10.0})
    assert lap.other_s == pytest.approx(1)
    assert lap.busy_s == pytest.approx({"generate": 6.0, "sandbox": 4.0, "train": 10.0})


def test_laps_follow_without_gap_and_keep_what_is_active() -> None:
    clock = Clock()
    timer = StageTimer(clock)
    with timer.stage("generate"):
        clock.now += 3
        first = timer.lap()
        clock.now += 2
    clock.now += 1
    second = timer.lap()
    assert (first.total_s, first.share_s, first.other_s) == (3, {"generate": 3}, 0)
    assert (second.total_s, second.share_s, second.other_s) == (3, {"generate": 2}, 1)


def test_a_stage_that_fails_is_left() -> None:
    clock = Clock()
    timer = StageTimer(clock)
    with pytest.raises(ZeroDivisionError), timer.stage("grade"):
        clock.now += 1
        raise ZeroDivisionError
    clock.now += 1
    assert timer.lap().share_s == {"grade": 1}
