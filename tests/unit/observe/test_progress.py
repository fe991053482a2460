"""What a person sees while waiting."""

import io
import re
import time

from rich.console import Console

from journeyman.observe import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_tells_pace_and_estimate() -> None:
    clock = Clock()
    progress = Progress(Console(file=io.StringIO(), force_terminal=False), clock=clock)
    with progress, progress.stage("held-out", 256, "episodes") as stage:
        assert stage.line() == "held-out: 0/256 episodes (0%), 0:00 gone"
        clock.now = 60.0
        stage.advance(64)
        stage.note("[21%] solved")
        assert stage.line() == (
            "held-out: 64/256 episodes (25%), 1:00 gone, about 3:00 left · [21%] solved"
        )
        clock.now = 3661.0
        stage.advance(192)
        assert stage.line().startswith("held-out: 256/256 episodes (100%), 1:01:01 gone ·")


def test_a_stage_with_a_limit_promises_no_more_than_the_limit() -> None:
    clock = Clock()
    progress = Progress(Console(file=io.StringIO(), force_terminal=False), clock=clock)
    with progress, progress.stage("reinforce", 20, limit_s=600.0) as stage:
        assert stage.line() == "reinforce: 0/20 steps (0%), 0:00 gone, about 10:00 left"
        clock.now = 60.0
        stage.advance()
        assert stage.line().endswith("1:00 gone, about 9:00 left")
        stage.advance(9)
        assert stage.line().endswith("1:00 gone, about 1:00 left")
        clock.now = 700.0
        assert stage.line().endswith("11:40 gone, about 0:00 left")


def test_what_an_earlier_process_did_says_nothing_of_the_pace() -> None:
    clock = Clock()
    progress = Progress(Console(file=io.StringIO(), force_terminal=False), clock=clock)
    with progress, progress.stage("reinforce", 20, done=10) as stage:
        assert stage.line() == "reinforce: 10/20 steps (50%), 0:00 gone"
        clock.now = 60.0
        stage.advance()
        assert stage.line() == "reinforce: 11/20 steps (55%), 1:00 gone, about 9:00 left"


def test_plain_lines_come_by_time_even_without_advance() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=False, width=200)
    with Progress(console, interval_s=0.05) as progress, progress.stage("train", 4):
        time.sleep(0.3)
    lines = shown.getvalue().splitlines()
    assert len(lines) >= 3
    assert all(re.match(r"train: 0/4 steps \(0%\), 0:00 gone", line) for line in lines)


def test_on_a_terminal_there_are_bars_and_nothing_of_a_note_is_markup() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=160)
    with Progress(console) as progress, progress.stage("train [bold]", 4) as stage:
        stage.advance(4)
        stage.note("[/] reward")
    assert "4/4" in shown.getvalue()
    assert "train [bold]" in shown.getvalue()
    assert "[/] reward" in shown.getvalue()


def test_stdout_stays_clean(capsys) -> None:
    with Progress() as progress, progress.stage("train", 1) as stage:
        stage.advance()
    assert capsys.readouterr().out == ""
