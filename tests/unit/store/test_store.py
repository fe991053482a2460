"""What is put into the store comes out equal; what is wrong with it is said clearly."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from journeyman.store import Store
from journeyman.store import database as database_module
from journeyman.types import (
    Failure,
    FailureKind,
    InfraError,
    JourneymanError,
    StopReason,
    TokenStream,
    UserError,
    Verdict,
)


def test_episode_comes_back_equal(store: Store, make_episode) -> None:
    episode = make_episode("a")
    store.save_episode(episode, run="r")
    assert store.episode("a") == episode
    (summary,) = store.summaries(run="r")
    assert (summary.policy_version, summary.tokens, summary.sampled_tokens) == (4, 3, 1)
    assert summary.reward == 1.0


def test_a_later_save_replaces(store: Store, make_episode) -> None:
    store.save_episode(make_episode("a", verdict=None), run="r")
    store.save_episode(make_episode("a", reward=0.0), run="r")
    assert [s.reward for s in store.summaries()] == [0.0]


def test_an_episode_id_keeps_its_group(store: Store, make_episode) -> None:
    store.save_episode(make_episode("a", group="one"), run="r")
    with pytest.raises(JourneymanError, match="belongs to group one"):
        store.save_episode(make_episode("a", group="two"), run="r")
    with pytest.raises(JourneymanError, match="of run 'r'"):
        store.save_episode(make_episode("a", group="one"), run="s")


def test_failures_are_indexed_by_kind_and_cause(store: Store, make_episode) -> None:
    failure = Failure(kind=FailureKind.INFRA, cause="SandboxGone", detail="x")
    store.save_episode(
        make_episode("a", verdict=None, failure=failure, stop=StopReason.FAILED), run="r"
    )
    unjudged = Failure(kind=FailureKind.VERIFIER, cause="NoVerdict")
    verdict = Verdict(reward=None, tree="t", failure=unjudged)
    store.save_episode(make_episode("b", verdict=verdict), run="r")
    found = [(s.id, s.failure_kind, s.failure_cause, s.reward) for s in store.summaries()]
    assert found == [
        ("a", FailureKind.INFRA, "SandboxGone", None),
        ("b", FailureKind.VERIFIER, "NoVerdict", None),
    ]


def test_episodes_are_selected_by_run_kind_and_group(store: Store, make_episode) -> None:
    store.save_episode(make_episode("late", group="g1", started_at=3.0), run="r")
    store.save_episode(make_episode("early", group="g1", started_at=2.0), run="r")
    store.save_episode(make_episode("held", kind="held_out"), run="r")
    store.save_episode(make_episode("other"), run="s")
    assert [e.id for e in store.episodes(run="r", group="g1")] == ["early", "late"]
    assert [e.id for e in store.episodes(kind="held_out")] == ["held"]
    assert [e.id for e in store.episodes(run="s")] == ["other"]


def test_what_would_not_read_back_equal_is_refused(store: Store, make_episode) -> None:
    stream = TokenStream(token_ids=(1,), loss_mask=(True,), logprobs=(float("nan"),), versions=(0,))
    with pytest.raises(JourneymanError, match="cannot be stored exactly"):
        store.save_episode(make_episode("a", streams=(stream,)), run="r")
    assert store.summaries() == []


def test_unknown_episode_names_its_id(store: Store) -> None:
    with pytest.raises(UserError, match="'nope'"):
        store.episode("nope")


def test_runs(store: Store) -> None:
    store.create_run("first", {"trainer": {"learning_rate": 1e-5}})
    store.create_run("second", {})
    assert store.run_names() == ["first", "second"]
    assert store.run_config("first") == {"trainer": {"learning_rate": 1e-5}}
    with pytest.raises(UserError, match="'first' exists already"):
        store.create_run("first", {})
    with pytest.raises(UserError, match="no run named 'third'"):
        store.run_config("third")


def test_metrics_replace_and_keep_order(store: Store) -> None:
    store.save_metrics("r", 2, {"loss": 0.5, "reward": 0.25})
    store.save_metrics("r", 1, {"loss": 1.5})
    store.save_metrics("r", 2, {"loss": 0.75})
    assert store.metric("r", "loss") == [(1, 1.5), (2, 0.75)]
    assert store.metric_names("r") == ["loss", "reward"]
    with pytest.raises(JourneymanError, match="'loss': nan"):
        store.save_metrics("r", 3, {"loss": float("nan")})


def test_verdict_cache_is_by_task_and_tree(store: Store) -> None:
    verdict = Verdict(reward=0.0, tree="t1", flags=("edited tests/test_x.py",))
    store.cache_verdict("task-a", verdict)
    assert store.cached_verdict("task-a", "t1") == verdict.model_copy(update={"cached": True})
    assert store.cached_verdict("task-a", "t2") is None
    assert store.cached_verdict("task-b", "t1") is None


def test_a_null_verdict_is_not_cached(store: Store) -> None:
    failure = Failure(kind=FailureKind.VERIFIER, cause="Crash")
    store.cache_verdict("task-a", Verdict(reward=None, tree="t1", failure=failure))
    assert store.cached_verdict("task-a", "t1") is None


def test_a_newer_schema_is_refused(store_url: str, tmp_path: Path) -> None:
    Store(store_url).close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE meta SET value = '99'")
    with pytest.raises(UserError, match=r"schema version 99; this Journeyman knows version 1"):
        Store(store_url)


def test_a_database_of_something_else_is_refused(store_url: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("CREATE TABLE episodes (id)")
    with pytest.raises(UserError, match="holds tables of something else: episodes"):
        Store(store_url)


def test_a_file_that_is_no_database_is_refused(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(UserError, match="not a whole SQLite database"):
        Store(store_url)


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/db", "sqlite://", "sqlite:///:memory:"])
def test_unfit_urls_are_refused(url: str) -> None:
    with pytest.raises(UserError) as refused:
        Store(url)
    assert "sqlite:////path/file.db" in refused.value.cure


def test_a_full_disk_undoes_the_change_and_says_so(store: Store, make_episode) -> None:
    store.save_episode(make_episode("kept"), run="r")
    with store.database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        pages = raw.execute("PRAGMA page_count").fetchone()[0]
        raw.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own limit acts as a full disk
    stream = TokenStream(
        token_ids=tuple(i * 7919 % 49152 for i in range(20000)),
        loss_mask=(False,) * 20000,
        logprobs=(0.0,) * 20000,
        versions=(-1,) * 20000,
    )
    with pytest.raises(UserError, match="is full; the last change was undone"):
        store.save_episode(make_episode("big", streams=(stream,)), run="r")
    assert [s.id for s in store.summaries()] == ["kept"]


def test_a_locked_database_is_an_infra_failure(
    store_url: str, tmp_path: Path, make_episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_S", 0.1)
    store = Store(store_url)
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(InfraError, match="stayed locked"):
        store.save_episode(make_episode("a"), run="r")
    assert store.summaries() == []  # readers do not wait for the writer
    holder.execute("ROLLBACK")
    store.save_episode(make_episode("a"), run="r")
    assert [s.id for s in store.summaries()] == ["a"]


def test_a_password_is_never_shown() -> None:
    with pytest.raises(JourneymanError) as refused:
        Store("postgresql://someone:secret@127.0.0.1:1/nowhere")
    assert "secret" not in str(refused.value)


def test_opens_without_torch_and_ray() -> None:
    script = "import sys, journeyman.store; print({'torch', 'ray'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"
