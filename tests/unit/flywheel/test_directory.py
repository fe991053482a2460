"""The run's folder: whole files, one holder, seconds that survive a crash."""

import json
import time
from pathlib import Path

import pytest

from journeyman.config import load_config
from journeyman.flywheel.directory import RunDirectory, Stopwatch
from journeyman.types import UserError

CONFIG = load_config("quickstart", ["name=r", "seed=3"])


def test_a_run_keeps_the_configuration_it_was_started_with(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, CONFIG)
    directory, config = RunDirectory.open(tmp_path / "r")
    assert config == CONFIG
    assert directory.name == "r"


def test_a_taken_name_and_a_folder_that_is_no_run_are_refused_with_a_cure(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, CONFIG)
    with pytest.raises(UserError, match="--resume"):
        RunDirectory.create(tmp_path, CONFIG)
    with pytest.raises(UserError, match=r"config.json is missing"):
        RunDirectory.open(tmp_path)


def test_two_processes_cannot_hold_one_run(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path, CONFIG)
    second, _ = RunDirectory.open(first.root)
    with first.held(), pytest.raises(UserError, match="another process"), second.held():
        pass
    with second.held():
        pass


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, CONFIG)
    directory.write("deep/summary.json", "old")
    directory.write("deep/summary.json", "new")
    assert (directory.root / "deep" / "summary.json").read_text() == "new"
    assert [p.name for p in (directory.root / "deep").iterdir()] == ["summary.json"]


def test_seconds_add_up_over_processes_and_count_a_phase_that_failed(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, CONFIG)
    directory.write("seconds.json", json.dumps({"warm_start": 10.0}))
    with pytest.raises(KeyError), Stopwatch(directory).running("warm_start"):
        time.sleep(0.01)
        raise KeyError
    assert 10.01 <= Stopwatch(directory).seconds["warm_start"] < 11


def test_seconds_kept_in_the_middle_survive_a_kill_and_phases_may_nest(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, CONFIG)
    watch = Stopwatch(directory)
    with watch.running("reinforcement"):
        with watch.running("evaluate_during"):
            time.sleep(0.01)
        time.sleep(0.01)
        watch.keep()
        killed_here = Stopwatch(directory).seconds
    assert 0.01 <= killed_here["evaluate_during"] < killed_here["reinforcement"]
    assert killed_here["reinforcement"] <= watch.seconds["reinforcement"]


def test_a_finished_run_keeps_its_summary_and_the_training_state_of_its_last_step(
    tmp_path: Path,
) -> None:
    directory = RunDirectory.create(tmp_path, CONFIG)
    assert directory.summary is None
    for name in ("start", "step-00009", "step-00010", "sft_control", ".warm-killed"):
        (directory.training / name).mkdir(parents=True)
    directory.finish('{"gain": 0.1}')
    assert directory.summary == '{"gain": 0.1}'
    assert [path.name for path in directory.training.iterdir()] == ["step-00010"]
