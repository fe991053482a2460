"""The supervised warm start: the oracle's tool calls replayed through the real agent and tools."""

import random
from collections.abc import Sequence

from journeyman.types import (
    Batch,
    Episode,
    Sample,
    StopReason,
    TokenStream,
    Turn,
    UserError,
)


def supervised_batches(
    episodes: Sequence[Episode], *, epochs: int, episodes_per_step: int, seed: int
) -> list[Batch]:
    """All steps of a warm start, in order; each epoch is shuffled on its own, the same way in
    every run of that seed.

    Only episodes that the agent submitted count: one whose replay stumbled teaches stumbling.
    """
    usable = sorted((e for e in episodes if _clean(e)), key=lambda e: (e.task, e.id))
    if not usable:
        raise UserError(
            "no oracle episode could be replayed to its end",
            "look at the episodes of kind 'oracle' in the store",
        )
    batches: list[Batch] = []
    for epoch in range(epochs):
        order = list(usable)
        random.Random(f"{seed}/warm/{epoch}").shuffle(order)
        for start in range(0, len(order), episodes_per_step):
            chosen = order[start : start + episodes_per_step]
            batches.append(Batch(step=len(batches) + 1, samples=_samples(chosen)))
    return batches


def schedule(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first tenth of the steps, then linear decay towards 0, which the
    step after the last would have: what small batches leave of noise settles in the last steps."""
    warmup = max(1, steps // 10)
    if step <= warmup:
        return peak * step / warmup
    return peak * (steps + 1 - step) / (steps + 1 - warmup)


def _clean(episode: Episode) -> bool:
    return episode.failure is None and episode.stop == StopReason.SUBMITTED


def without_refused(stream: TokenStream, turns: Sequence[Turn]) -> TokenStream:
    """The stream without loss on replies whose call the tools refused: a slip is context for
    what mends it, not an example. Streams of edited histories stay as they are."""
    runs: list[list[int]] = []
    for place, sampled in enumerate(stream.loss_mask):
        if sampled and (place == 0 or not stream.loss_mask[place - 1]):
            runs.append([])
        if sampled:
            runs[-1].append(place)
    if len(runs) != len(turns):
        return stream
    mask = list(stream.loss_mask)
    for run, turn in zip(runs, turns, strict=True):
        if any(result.content.startswith("error:") for result in turn.results):
            for place in run:
                mask[place] = False
    return stream.model_copy(update={"loss_mask": tuple(mask)})


def _samples(episodes: Sequence[Episode]) -> tuple[Sample, ...]:
    return tuple(
        Sample(episode=episode.id, group=episode.group, stream=stream, advantage=1.0)
        for episode in episodes
        for stream in (without_refused(stream, episode.turns) for stream in episode.streams)
        if any(stream.loss_mask)
    )
