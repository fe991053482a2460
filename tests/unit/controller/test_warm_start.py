"""What the warm start learns from."""

from itertools import pairwise

from journeyman.controller.warm_start import schedule, supervised_batches
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


def test_the_order_is_the_seeds_whatever_ids_the_replay_gave() -> None:
    def order(names: dict[str, str], seed: int) -> list[str]:
        given = [
            episode("submitted").model_copy(update={"id": i, "task": t}) for t, i in names.items()
        ]
        batches = supervised_batches(given, epochs=2, episodes_per_step=1, seed=seed)
        tasks = {name: task for task, name in names.items()}
        return [tasks[sample.episode] for batch in batches for sample in batch.samples]

    tasks = [f"task-{n}" for n in range(9)]
    first = order({task: f"a{n}" for n, task in enumerate(tasks)}, 0)
    again = order({task: f"z{9 - n}" for n, task in enumerate(tasks)}, 0)
    assert first == again
    assert first[:9] != first[9:]
    assert order({task: task for task in tasks}, 1) != first


def test_the_learning_rate_rises_to_its_peak_and_falls_towards_zero() -> None:
    rates = [schedule(step, 20, 1.0) for step in range(1, 21)]
    assert rates[:2] == [0.5, 1.0]
    assert all(before > after for before, after in pairwise(rates[1:]))
    assert 0 < rates[-1] < 0.1
    assert schedule(1, 1, 1.0) == 1.0
