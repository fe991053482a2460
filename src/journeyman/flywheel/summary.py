"""What the main job prints at its end, and what the report is made from."""

from typing import Any

from journeyman.evaluation import Evaluation, gain, pass_at_k
from journeyman.evaluation.report.data import GREEDY

TRAINING = ("warm_start", "plateau", "reinforcement")
"""The phases whose seconds count as training: what made the policy that `rl` measures."""


def numbers(evaluation: Evaluation) -> dict[str, Any]:
    """A solve rate with its interval."""
    return evaluation.model_dump(include={"solved", "episodes", "low", "high", "failures"})


def summarise(
    evaluations: dict[str, Evaluation], seconds: dict[str, float], run: str, *, pass_at: int
) -> dict[str, Any]:
    """One object: every evaluation by name, greedy ones below `greedy`, and the gain of `rl` over
    `warm` where both are."""
    summary: dict[str, Any] = {}
    for name, value in evaluations.items():
        phase = name.removesuffix(GREEDY)
        place = summary if phase == name else summary.setdefault("greedy", {})
        place[phase] = numbers(value)
    if "warm" in evaluations and "rl" in evaluations:
        change = gain(evaluations["rl"], evaluations["warm"])
        summary |= {"gain": change.value, "gain_low": change.low, "gain_high": change.high}
    for control in ("plateau", "sft_control"):
        if control in evaluations and "rl" in evaluations:
            change = gain(evaluations["rl"], evaluations[control])
            summary[f"gain_over_{control}"] = change.model_dump()
    if pass_at:
        summary[f"pass_at_{pass_at}"] = {
            name: pass_at_k(value.matrix(), pass_at).model_dump()
            for name, value in evaluations.items()
            if value.tasks and len(value.tasks[0].samples) >= pass_at
        }
    training = sum(seconds.get(phase, 0.0) for phase in TRAINING)
    return summary | {"seconds": round(training, 1), "seconds_by_phase": seconds, "run": run}
