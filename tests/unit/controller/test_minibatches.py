"""One step's batch in several updates: nothing lost, groups whole, one report."""

from hypothesis import given
from hypothesis import strategies as st

from journeyman.controller.minibatches import mean_metrics, minibatches
from journeyman.trainer import StepMetrics
from journeyman.types import Batch, Sample, TokenStream

STREAM = TokenStream(token_ids=(1,), loss_mask=(True,), logprobs=(0.0,), versions=(0,))


def batch(sizes: list[int]) -> Batch:
    return Batch(
        step=7,
        samples=tuple(
            Sample(episode=f"{group}/{i}", group=str(group), stream=STREAM, advantage=1.0)
            for group, size in enumerate(sizes)
            for i in range(size)
        ),
    )


def metrics(**changes: object) -> StepMetrics:
    values: dict[str, object] = {
        "step": 1, "loss": 1.0, "tokens": 10, "nodes": 20, "stream_tokens": 30, "packs": 1,
        "gradient_norm": 1.0, "learning_rate": 0.1, "entropy": 1.0, "mean_logprob": -1.0,
        "forward_s": 1.0, "head_s": 1.0, "backward_s": 1.0, "optimiser_s": 1.0, "total_s": 4.0,
    }  # fmt: skip
    return StepMetrics.model_validate(values | changes)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=16), st.integers(1, 6))
def test_every_sample_is_in_one_update_and_no_group_is_torn(sizes: list[int], count: int) -> None:
    whole = batch(sizes)
    parts = minibatches(whole, count)
    assert tuple(sample for part in parts for sample in part.samples) == whole.samples
    assert len(parts) <= count
    assert all(part.samples and part.step == whole.step for part in parts)
    homes = [{sample.group for sample in part.samples} for part in parts]
    assert sum(map(len, homes)) == len(sizes)


def test_updates_are_of_about_one_size() -> None:
    assert [len(part.samples) for part in minibatches(batch([8] * 12), 4)] == [24] * 4


def test_one_update_is_the_batch_itself() -> None:
    whole = batch([3, 2])
    assert minibatches(whole, 1) == [whole]


def test_reports_become_one_with_means_by_token() -> None:
    merged = mean_metrics(
        [
            metrics(loss=1.0, tokens=10, max_logprob_difference=0.25, parity_tokens=10),
            metrics(step=2, loss=4.0, tokens=30, gradient_norm=3.0),
        ]
    )
    assert merged["loss"] == (1.0 * 10 + 4.0 * 30) / 40
    assert merged["gradient_norm"] == (1.0 * 10 + 3.0 * 30) / 40
    assert (merged["tokens"], merged["nodes"], merged["total_s"]) == (40, 40, 8.0)
    assert (merged["step"], merged["max_logprob_difference"]) == (2, 0.25)
    assert "clip_fraction" not in merged


def test_one_report_stays_as_it_is() -> None:
    only = metrics(clip_fraction=0.5)
    assert mean_metrics([only]) == only.model_dump(exclude_none=True)
