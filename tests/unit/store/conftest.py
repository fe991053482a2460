"""A fresh store per test, and episodes to put into it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journeyman.store import Store
from journeyman.types import Episode, Message, StopReason, TokenStream, Turn, Verdict

MakeEpisode = Callable[..., Episode]


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    opened = Store(store_url)
    yield opened
    opened.close()


@pytest.fixture
def make_episode() -> MakeEpisode:
    def make(identity: str, group: str = "g", reward: float | None = 1.0, **changes: object):
        return Episode.model_validate(
            {
                "id": identity,
                "task": "task-1",
                "group": group,
                "kind": "train",
                "prompt": (Message(role="user", content="mend it \u2603 \x00"),),
                "turns": (Turn(reply=Message(role="assistant", content="done")),),
                "streams": (
                    TokenStream(
                        token_ids=(1, 2, 7),
                        loss_mask=(False, False, True),
                        logprobs=(0.0, 0.0, -0.1234567890123456),
                        versions=(-1, -1, 4),
                    ),
                ),
                "stop": StopReason.SUBMITTED,
                "verdict": Verdict(reward=reward, tree=f"tree-{identity}"),
                "started_at": 1000.0,
            }
            | changes
        )

    return make
