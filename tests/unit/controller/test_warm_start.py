"""What the warm start learns from."""

from journeyman.controller.warm_start import supervised_batches
from journeyman.types import Episode, Message, StopReason, TokenStream, Turn


def turn(result: str) -> Turn:
    return Turn(
        reply=Message(role="assistant", content="call"),
        results=(Message(role="tool", content=result, tool_call_id="1"),),
    )


def episode(*results: str, stop: StopReason = StopReason.SUBMITTED) -> Episode:
    """Each turn is two sampled tokens and one of its result."""
    mask = (False, *(on for _ in results for on in (True, True, False)))
    return Episode(
        id="e",
        task="t",
        group="g",
        kind="oracle",
        prompt=(),
        turns=tuple(turn(result) for result in results),
        streams=(
            TokenStream(
                token_ids=tuple(range(len(mask))),
                loss_mask=mask,
                logprobs=(0.0,) * len(mask),
                versions=tuple(0 if on else -1 for on in mask),
            ),
        ),
        stop=stop,
        started_at=0.0,
    )


def masks(*episodes: Episode) -> list[tuple[bool, ...]]:
    batches = supervised_batches(episodes, epochs=1, episodes_per_step=8, seed=0)
    return [sample.stream.loss_mask for batch in batches for sample in batch.samples]


def test_a_refused_call_is_context_and_no_example() -> None:
    (mask,) = masks(episode("1-2 of 9", "error: old_string is not in a.py", "edited line 1"))
    assert mask == (False, True, True, False, False, False, False, True, True, False)


def test_without_refusals_every_reply_is_learned() -> None:
    given = episode("1-2 of 9", "edited line 1", "submitted")
    assert masks(given) == [given.streams[0].loss_mask]


def test_an_episode_that_did_not_end_well_teaches_nothing() -> None:
    good = episode("submitted")
    assert masks(episode("submitted", stop=StopReason.TURNS), good) == [good.streams[0].loss_mask]
