"""The last line of the main job."""

from journeyman.evaluation import Evaluation, Outcome, TaskOutcome, summarise
from journeyman.flywheel.summary import summarise as summary_of
from journeyman.types import StopReason


def evaluation(*solved: list[int]) -> Evaluation:
    """One list for each task: which samples were solved."""
    return summarise(
        [
            TaskOutcome(
                task=f"task-{number}",
                samples=tuple(
                    Outcome(reward=float(one), stop=StopReason.SUBMITTED) for one in samples
                ),
            )
            for number, samples in enumerate(solved)
        ]
    )


def test_it_has_rates_gains_over_every_control_greedy_rates_and_pass_at_k() -> None:
    found = summary_of(
        {
            "warm": evaluation([0, 0], [0, 1]),
            "warm_greedy": evaluation([0], [1]),
            "plateau": evaluation([0, 0], [1, 1]),
            "sft_control": evaluation([0, 0], [0, 1]),
            "rl": evaluation([1, 0], [1, 1]),
            "rl_greedy": evaluation([1], [1]),
        },
        {"warm_start": 8.0, "plateau": 2.0, "reinforcement": 20.5, "sft_control": 20.5},
        "runs/learn",
        pass_at=2,
    )
    assert found["rl"]["solved"] == 0.75
    assert found["gain"] == 0.5
    assert found["gain_low"] <= found["gain"] <= found["gain_high"]
    assert found["gain_over_plateau"]["value"] == 0.25
    assert found["gain_over_sft_control"]["value"] == 0.5
    assert {name: rate["solved"] for name, rate in found["greedy"].items()} == {
        "warm": 0.5,
        "rl": 1.0,
    }
    assert {name: rate["value"] for name, rate in found["pass_at_2"].items()} == {
        "warm": 0.5,
        "plateau": 0.5,
        "sft_control": 0.5,
        "rl": 1.0,
    }
    assert found["seconds"] == 30.5
    assert found["run"] == "runs/learn"


def test_without_reinforcement_there_is_no_gain_to_tell() -> None:
    found = summary_of({"warm": evaluation([1])}, {"warm_start": 1.0}, "runs/x", pass_at=0)
    assert "gain" not in found
    assert "greedy" not in found
