"""Rewards and baselines: nothing scored by default, nothing learned from equal rewards."""

import pytest

from journeyman.controller.advantages import Group, GroupOutcome, outcome
from journeyman.types import (
    Episode,
    Failure,
    FailureKind,
    Message,
    StopReason,
    TokenStream,
    ToolCall,
    Turn,
    Verdict,
)

STREAM = TokenStream(
    token_ids=(1, 2, 3),
    loss_mask=(False, True, True),
    logprobs=(0.0, -0.5, -0.25),
    versions=(-1, 3, 3),
)


def episode(name: str, reward: float | None, **changes: object) -> Episode:
    verdict = Verdict(reward=reward, tree="t") if "failure" not in changes else None
    values: dict[str, object] = {
        "id": name, "task": "t", "group": "g", "kind": "train", "prompt": (), "turns": (),
        "streams": (STREAM,), "stop": StopReason.SUBMITTED, "verdict": verdict, "started_at": 0.0,
    }  # fmt: skip
    return Episode.model_validate(values | changes)


def judge(
    *episodes: Episode,
    format_reward: float = 0.0,
    normalise_std: bool = False,
    negative_weight: float = 1.0,
) -> GroupOutcome:
    return outcome(
        Group(id="g", episodes=episodes),
        format_reward=format_reward,
        normalise_std=normalise_std,
        negative_weight=negative_weight,
    )


def test_advantage_is_reward_minus_the_groups_mean() -> None:
    result = judge(*(episode(str(i), float(i == 0)) for i in range(4)))
    assert [s.advantage for s in result.samples] == [0.75, -0.25, -0.25, -0.25]
    assert result.dropped is None


def test_division_by_the_standard_deviation_is_a_choice() -> None:
    result = judge(episode("a", 1.0), episode("b", 0.0), normalise_std=True)
    assert [s.advantage for s in result.samples] == [1.0, -1.0]


def test_what_did_worse_than_the_group_can_weigh_less_or_be_left_out() -> None:
    episodes = [episode(str(i), float(i == 0)) for i in range(4)]
    half = judge(*episodes, negative_weight=0.5)
    assert [s.advantage for s in half.samples] == [0.75, -0.125, -0.125, -0.125]
    none = judge(*episodes, negative_weight=0.0)
    assert [(s.episode, s.advantage) for s in none.samples] == [("0", 0.75)]
    assert none.rewards == half.rewards


def test_an_episode_as_good_as_the_groups_mean_is_not_trained_on() -> None:
    result = judge(episode("a", 1.0), episode("b", 0.5), episode("c", 0.0))
    assert [s.episode for s in result.samples] == ["a", "c"]


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_teach_nothing_and_are_dropped_by_name(reward: float) -> None:
    result = judge(episode("a", reward), episode("b", reward))
    assert (result.dropped, result.samples) == ("equal_rewards", ())


def test_a_null_reward_leaves_the_baseline_and_is_counted_never_zero() -> None:
    result = judge(episode("a", 1.0), episode("b", None), episode("c", 0.0))
    assert result.rewards == (1.0, 0.0)
    assert result.null_rewards == 1
    assert [s.episode for s in result.samples] == ["a", "c"]


def test_infra_failures_leave_the_baseline_and_policy_failures_score_zero() -> None:
    infra = Failure(kind=FailureKind.INFRA, cause="SandboxGone")
    policy = Failure(kind=FailureKind.POLICY, cause="memory")
    result = judge(
        episode("a", 1.0),
        episode("b", None, failure=infra),
        episode("c", None, failure=policy),
    )
    assert result.rewards == (1.0, 0.0)
    assert result.null_rewards == 1


def test_one_trustworthy_reward_is_no_group() -> None:
    assert judge(episode("a", 1.0), episode("b", None)).dropped == "too_few_rewards"


def test_the_format_term_is_for_valid_calls_and_a_submission_only() -> None:
    good = ToolCall(id="1", name="read", arguments={})
    bad = good.model_copy(update={"repairs": ("closed a brace",)})

    def turn(call: ToolCall) -> Turn:
        return Turn(reply=Message(role="assistant", content="", tool_calls=(call,)))

    result = judge(
        episode("a", 0.0, turns=(turn(good),)),
        episode("b", 0.0, turns=(turn(bad),)),
        episode("c", 0.0, turns=(turn(good),), stop=StopReason.TURNS),
        format_reward=0.1,
    )
    assert result.rewards == (0.1, 0.0, 0.0)
