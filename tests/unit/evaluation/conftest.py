"""A made-up run in a real store, with a tokenizer of one token per byte."""

from collections.abc import Callable

import numpy as np
import pytest

from journeyman.evaluation import Outcome, TaskOutcome, summarise
from journeyman.store import Store
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

HOSTILE = '</pre><script>alert("x")</script><img src=x onerror=alert(1)> & \u202e\x1b[31m'


def decode(ids: list[int]) -> str:
    return bytes(i % 256 for i in ids).decode("utf-8", "replace")


def stream_of(parts: list[tuple[str, bool]], dice: np.random.Generator) -> TokenStream:
    ids, mask = [], []
    for text, sampled in parts:
        ids += list(text.encode())
        mask += [sampled] * len(text.encode())
    chances = dice.beta(3, 0.6, len(ids)).clip(1e-4, 1)
    return TokenStream(
        token_ids=tuple(ids),
        loss_mask=tuple(mask),
        logprobs=tuple(float(np.log(c)) if m else 0.0 for c, m in zip(chances, mask, strict=True)),
        versions=tuple(4 if m else -1 for m in mask),
    )


def made_up_episode(
    identity: str, task: str, kind: str, reward: float | None, started_at: float, **changes: object
) -> Episode:
    dice = np.random.default_rng(abs(hash(identity)) % 2**32)
    ask = f"The tests of {task} fail. Mend it.\n{HOSTILE}"
    first = (
        'I read the function first.\n<tool_call>{"name": "read", "arguments": '
        '{"path": "src/strings.py", "offset": 118}}</tool_call>'
    )
    output = (
        "118  def slugify(text, delim='_'):\n119      ret = text.lower()\n"
        f"120      return delim.join(ret.split())  # naïve ☃\n{HOSTILE}"
    )
    second = '<tool_call>{"name": "submit", "arguments": {}}</tool_call>'
    call = ToolCall(id="1", name="read", arguments={}, repairs=("closed the last brace",))
    turns = (
        Turn(
            reply=Message(role="assistant", content=first, tool_calls=(call,)),
            results=(Message(role="tool", content=output, tool_call_id="1"),),
            model_s=1.25,
            tools_s=0.5,
        ),
        Turn(reply=Message(role="assistant", content=second), model_s=0.4, truncated=reward == 0),
    )
    parts = [(ask, False), (first, True), (output, False), (second, True)]
    return Episode.model_validate(
        {
            "id": identity,
            "task": task,
            "group": f"g-{identity}",
            "kind": kind,
            "prompt": (
                Message(role="system", content="You mend code."),
                Message(role="user", content=ask),
            ),
            "turns": turns,
            "streams": (stream_of(parts, dice),),
            "stop": StopReason.SUBMITTED if reward else StopReason.TURNS,
            "verdict": Verdict(reward=reward, tree="ab" * 32, duration_s=2.0),
            "timings_s": {"generate": 1.6, "sandbox": 0.5, "grade": 2.0},
            "started_at": started_at,
        }
        | changes
    )


def fill(store: Store, run: str = "demo") -> None:
    """base, warm, twelve steps of reinforcement, rl."""
    dice = np.random.default_rng(2)
    store.create_run(run, {"seed": 1, "reinforcement": {"steps": 12, "note": HOSTILE}})
    clock = 0.0
    ease = dice.beta(0.4, 1.2, size=64)
    evaluated = (
        ("base", 0, 0.05, 4),
        ("plateau", 0, 0.7, 4),
        ("rl", 12, 1.1, 4),
        ("rl_greedy", 12, 1.2, 1),
        ("warm", 0, 0.6, 4),
    )
    for name, step, lift, samples in evaluated:
        rows = []
        for task, chance in enumerate(ease):
            outcomes = []
            for sample in range(samples):
                clock += 1
                solved = float(dice.random() < chance * lift)
                identity = f"{name}-{task}-{sample}" if task < 12 else None
                failure = None
                if task == 5 and sample == 0:
                    failure = Failure(kind=FailureKind.INFRA, cause="SandboxGone", detail=HOSTILE)
                if identity:
                    store.save_episode(
                        made_up_episode(identity, f"boltons-{task:03}", "held_out", solved, clock),
                        run,
                    )
                outcomes.append(
                    Outcome(
                        reward=None if failure else solved,
                        stop=StopReason.SUBMITTED,
                        failure=failure,
                        episode=identity,
                    )
                )
            rows.append(TaskOutcome(task=f"boltons-{task:03}", samples=tuple(outcomes)))
        store.save_evaluation(run, name, step, summarise(rows))
    for step in range(1, 13):
        reward = 0.22 + 0.012 * step + float(dice.normal(0, 0.02))
        values = {"reward": reward, "reward_low": reward - 0.06, "reward_high": reward + 0.06}
        seconds = {"generate": 14.0, "sandbox": 3.0, "grade": 5.0, "train": 12.0, "other": 1.2}
        values |= {f"step_s/{k}": v * float(dice.uniform(0.8, 1.2)) for k, v in seconds.items()}
        store.save_metrics(run, step, values)
        clock += 1
        store.save_episode(
            made_up_episode(f"t-{step}", f"toolz-{step:03}", "train", float(step % 3 == 0), clock),
            run,
        )
    failure = Failure(kind=FailureKind.VERIFIER, cause="NoVerdict", detail=HOSTILE)
    store.save_episode(
        made_up_episode("t-bad", "toolz-000", "train", None, clock + 1, failure=failure), run
    )


@pytest.fixture(scope="module")
def demo_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    opened = Store(f"sqlite:///{tmp_path_factory.mktemp('demo')}/store.db")
    fill(opened)
    return opened


@pytest.fixture
def decode_bytes() -> Callable[[list[int]], str]:
    return decode


@pytest.fixture
def hostile() -> str:
    return HOSTILE
