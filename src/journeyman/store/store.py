"""The system of record: episodes of training and of people's sessions, runs, metrics, verdicts."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, delete, insert, select

from journeyman.store.codec import AnyValue, pack, unpack
from journeyman.store.database import Database, default_url
from journeyman.store.schema import episodes, evaluations, metrics, runs, verdicts
from journeyman.types import Episode, FailureKind, JourneymanError, UserError, Value, Verdict


class EpisodeSummary(Value):
    """The indexed columns of one episode; `policy_version` is the latest that sampled, or -1."""

    id: str
    run: str
    kind: str
    task: str
    group: str
    stop: str
    reward: float | None
    failure_kind: FailureKind | None
    failure_cause: str | None
    policy_version: int
    tokens: int
    sampled_tokens: int
    started_at: float


class Store:
    """All calls block for milliseconds, or up to 30 s when another process holds the database:
    from a coroutine use `asyncio.to_thread`. Safe to share between threads."""

    def __init__(self, url: str | None = None) -> None:
        """`url`: `sqlite:////path/file.db` or `postgresql://…`; default in `$JOURNEYMAN_HOME`."""
        self.database = Database(url or default_url())

    def close(self) -> None:
        """Give back the connections."""
        self.database.close()

    # --- runs -----------------------------------------------------------------------------

    def create_run(self, name: str, config: Mapping[str, Any]) -> None:
        """Raises UserError if the name is taken."""
        with self.database.write() as connection:
            taken = connection.scalar(select(runs.c.name).where(runs.c.name == name))
            if taken is not None:
                raise UserError(
                    f"a run named {name!r} exists already", "resume it, or choose another name"
                )
            row = {"name": name, "created_at": time.time(), "config": json.dumps(config)}
            connection.execute(insert(runs).values(row))

    def run_config(self, name: str) -> dict[str, Any]:
        """The configuration the run was created with. Raises UserError for an unknown run."""
        with self.database.read() as connection:
            config = connection.scalar(select(runs.c.config).where(runs.c.name == name))
        if config is None:
            raise UserError(f"no run named {name!r} in the store", f"known: {self.run_names()}")
        loaded: dict[str, Any] = json.loads(config)
        return loaded

    def run_names(self) -> list[str]:
        """Every run, oldest first."""
        with self.database.read() as connection:
            return list(connection.scalars(select(runs.c.name).order_by(runs.c.created_at)))

    # --- episodes -------------------------------------------------------------------------

    def save_episode(self, episode: Episode, run: str) -> None:
        """Keep an episode; one of the same id is replaced (its verdict may come later)."""
        with self.database.write() as connection:
            put_episodes(connection, run, [episode])

    def episode(self, episode_id: str) -> Episode:
        """Raises UserError if there is none of that id."""
        with self.database.read() as connection:
            body = connection.scalar(select(episodes.c.body).where(episodes.c.id == episode_id))
        if body is None:
            raise UserError(f"no episode {episode_id!r} in the store", "check the id and the store")
        return unpack(Episode, body)

    def episodes(
        self, *, run: str | None = None, kind: str | None = None, group: str | None = None
    ) -> Iterator[Episode]:
        """Whole episodes, oldest first, read one by one. Break off freely."""
        for summary in self.summaries(run=run, kind=kind, group=group):
            yield self.episode(summary.id)

    def summaries(
        self, *, run: str | None = None, kind: str | None = None, group: str | None = None
    ) -> list[EpisodeSummary]:
        """The indexed columns only, oldest first: quick for thousands of episodes."""
        columns = [column for column in episodes.c if column.name != "body"]
        query = _where(select(*columns), run=run, kind=kind, group_id=group)
        with self.database.read() as connection:
            rows = connection.execute(query.order_by(episodes.c.started_at, episodes.c.id))
            return [
                EpisodeSummary(group=row["group_id"], **_without(row, "group_id"))
                for row in rows.mappings()
            ]

    # --- metrics --------------------------------------------------------------------------

    def save_metrics(self, run: str, step: int, values: Mapping[str, float]) -> None:
        """Keep named numbers of one step; saving a name again replaces it (a replayed step)."""
        with self.database.write() as connection:
            put_metrics(connection, run, step, values)

    def metric(self, run: str, name: str) -> list[tuple[int, float]]:
        """(step, value) in order of steps."""
        query = select(metrics.c.step, metrics.c.value).where(
            metrics.c.run == run, metrics.c.name == name
        )
        with self.database.read() as connection:
            rows = connection.execute(query.order_by(metrics.c.step))
            return [(step, value) for step, value in rows]

    def metric_names(self, run: str) -> list[str]:
        """Every metric the run recorded, in alphabetical order."""
        query = select(metrics.c.name).where(metrics.c.run == run).distinct()
        with self.database.read() as connection:
            return list(connection.scalars(query.order_by(metrics.c.name)))

    # --- evaluations ----------------------------------------------------------------------

    def save_evaluation(self, run: str, name: str, step: int, evaluation: Value) -> None:
        """Keep one evaluation of the run under a name (base, warm, rl, …) and the number of
        optimiser steps before it. Saving it again replaces it."""
        key = {"run": run, "name": name, "step": step}
        body = pack(evaluation)
        with self.database.write() as connection:
            connection.execute(delete(evaluations).filter_by(**key))
            connection.execute(insert(evaluations).values(**key, body=body))

    def evaluations(self, run: str, kind: type[AnyValue]) -> list[tuple[str, int, AnyValue]]:
        """(name, step, evaluation) of the run, by step and name; all are values of `kind`."""
        columns = (evaluations.c.name, evaluations.c.step, evaluations.c.body)
        query = select(*columns).where(evaluations.c.run == run)
        with self.database.read() as connection:
            rows = connection.execute(query.order_by(evaluations.c.step, evaluations.c.name))
            return [(name, step, unpack(kind, body)) for name, step, body in rows]

    # --- verdicts -------------------------------------------------------------------------

    def cached_verdict(self, task_digest: str, tree_digest: str) -> Verdict | None:
        """The verdict once given on this very tree of this very task, marked `cached`."""
        query = select(verdicts.c.body).where(
            verdicts.c.task_digest == task_digest, verdicts.c.tree_digest == tree_digest
        )
        with self.database.read() as connection:
            body = connection.scalar(query)
        if body is None:
            return None
        return unpack(Verdict, body).model_copy(update={"cached": True})

    def cache_verdict(self, task_digest: str, verdict: Verdict) -> None:
        """Keep a verdict for its tree. One without a reward is not kept: it may be had later."""
        if verdict.reward is None:
            return
        key = {"task_digest": task_digest, "tree_digest": verdict.tree}
        body = pack(verdict.model_copy(update={"cached": False}))
        with self.database.write() as connection:
            connection.execute(delete(verdicts).filter_by(**key))
            connection.execute(insert(verdicts).values(**key, body=body))


def put_episodes(connection: Connection, run: str, values: Sequence[Episode]) -> None:
    """Write episodes inside the caller's transaction. An id keeps its run and group for ever."""
    if not values:
        return
    rows = [_episode_row(run, episode) for episode in values]
    by_id = {row["id"]: row for row in rows}
    if len(by_id) != len(rows):
        raise JourneymanError(f"one episode id twice among {[row['id'] for row in rows]}")
    columns = select(episodes.c.id, episodes.c.run, episodes.c.group_id)
    for old in connection.execute(columns.where(episodes.c.id.in_(by_id))):
        if (old.run, old.group_id) != (run, by_id[old.id]["group_id"]):
            raise JourneymanError(
                f"episode id {old.id!r} belongs to group {old.group_id} of run {old.run!r} already"
            )
    connection.execute(delete(episodes).where(episodes.c.id.in_(by_id)))
    connection.execute(insert(episodes), rows)


def put_metrics(connection: Connection, run: str, step: int, values: Mapping[str, float]) -> None:
    """Write metrics inside the caller's transaction."""
    if not values:
        return
    bad = {name: value for name, value in values.items() if not math.isfinite(value)}
    if bad:
        raise JourneymanError(f"metrics of step {step} are not finite numbers: {bad}")
    connection.execute(
        delete(metrics).where(
            metrics.c.run == run, metrics.c.step == step, metrics.c.name.in_(values)
        )
    )
    rows = [{"run": run, "step": step, "name": n, "value": float(v)} for n, v in values.items()]
    connection.execute(insert(metrics), rows)


def _episode_row(run: str, episode: Episode) -> dict[str, Any]:
    failure = episode.failure or (episode.verdict.failure if episode.verdict else None)
    return {
        "id": episode.id,
        "run": run,
        "kind": episode.kind,
        "task": episode.task,
        "group_id": episode.group,
        "stop": episode.stop.value,
        "reward": episode.verdict.reward if episode.verdict else None,
        "failure_kind": failure.kind.value if failure else None,
        "failure_cause": failure.cause if failure else None,
        "policy_version": max((max(s.versions, default=-1) for s in episode.streams), default=-1),
        "tokens": sum(len(stream.token_ids) for stream in episode.streams),
        "sampled_tokens": sum(sum(stream.loss_mask) for stream in episode.streams),
        "started_at": episode.started_at,
        "body": pack(episode),
    }


def _where(query: Select[Any], **equal: str | None) -> Select[Any]:
    for name, value in equal.items():
        if value is not None:
            query = query.where(episodes.c[name] == value)
    return query


def _without(row: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}
