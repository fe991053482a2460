"""What the main job prints at its end, and what the report is made from."""

from typing import Any

from journeyman.evaluation import Evaluation, gain, pass_at_k


def numbers(evaluation: Evaluation) -> dict[str, Any]:
    """A solve rate with its interval."""
    return evaluation.model_dump(include={"solved", "episodes", "low", "high", "failures"})


def summarise(
    evaluations: dict[str, Evaluation], seconds: dict[str, float], run: str, *, pass_at: int
) -> dict[str, Any]:
    """One object: every evaluation by name, and the gain of `rl` over `warm` where both are."""
    summary: dict[str, Any] = {name: numbers(value) for name, value in evaluations.items()}
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
    training = seconds.get("warm_start", 0.0) + seconds.get("reinforcement", 0.0)
    return summary | {"seconds": round(training, 1), "seconds_by_phase": seconds, "run": run}
