"""From graded groups to samples: rewards, group baselines, advantages."""

from collections.abc import Sequence
from statistics import fmean, pstdev

from journeyman.types import Episode, Sample, StopReason, Value


class Group(Value):
    """All episodes of one prompt, graded."""

    id: str
    episodes: tuple[Episode, ...]


class GroupOutcome(Value):
    """What a group gives to learning. `dropped` says why it gives nothing."""

    samples: tuple[Sample, ...] = ()
    rewards: tuple[float, ...] = ()
    null_rewards: int = 0
    dropped: str | None = None


def well_formed(episode: Episode) -> bool:
    """Every call could be parsed without repair, and the agent submitted."""
    calls = [call for turn in episode.turns for call in turn.reply.tool_calls]
    return episode.stop == StopReason.SUBMITTED and all(
        call.error is None and not call.repairs for call in calls
    )


def reward(episode: Episode, format_reward: float) -> float | None:
    """The verifier's reward plus the format term, or None when there is no trustworthy verdict.

    An episode that failed by the policy's own doing before anything could be judged is 0.
    """
    if episode.failure is not None and episode.failure.kind != "policy":
        return None
    if episode.verdict is None:
        return 0.0 if episode.failure is not None else None
    if episode.verdict.reward is None:
        return None
    return episode.verdict.reward + (format_reward if well_formed(episode) else 0.0)


def outcome(
    group: Group, *, format_reward: float, normalise_std: bool, negative_weight: float
) -> GroupOutcome:
    """Advantage = reward − mean of the group (Shao et al. 2024, GRPO).

    Dividing by the standard deviation is off by default: it weighs nearly solved and nearly
    hopeless prompts up (Liu et al. 2025, "Dr. GRPO"). Advantages below 0 are multiplied by
    `negative_weight`: pushing down what was sampled has no end it tends to, as pushing up has, and
    spoils a small policy at learning rates that it otherwise bears (Zhu et al. 2025, arXiv
    2506.01347, take the two halves apart). A group whose rewards are all equal teaches nothing and
    is dropped, by name; an episode whose advantage is 0 is left out.
    """
    scored = [(e, r) for e in group.episodes if (r := reward(e, format_reward)) is not None]
    rewards = tuple(r for _, r in scored)
    null_rewards = len(group.episodes) - len(scored)
    if len(scored) < 2:
        return GroupOutcome(rewards=rewards, null_rewards=null_rewards, dropped="too_few_rewards")
    if max(rewards) == min(rewards):
        return GroupOutcome(rewards=rewards, null_rewards=null_rewards, dropped="equal_rewards")
    mean, scale = fmean(rewards), pstdev(rewards) if normalise_std else 1.0
    weighed = [(e, (r - mean) / scale * (1.0 if r > mean else negative_weight)) for e, r in scored]
    samples = tuple(
        Sample(episode=e.id, group=group.id, stream=stream, advantage=advantage)
        for e, advantage in weighed
        for stream in e.streams
        if advantage and any(stream.loss_mask)
    )
    return GroupOutcome(samples=samples, rewards=rewards, null_rewards=null_rewards)


def solved(episodes: Sequence[Episode]) -> int:
    """How many episodes the verifier gave full reward."""
    return sum(e.verdict is not None and e.verdict.reward == 1.0 for e in episodes)
