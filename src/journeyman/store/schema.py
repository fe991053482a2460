"""The tables of the store. Whole values are kept as compressed JSON beside indexed columns."""

from typing import NamedTuple

from sqlalchemy import (
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()


class Schema(NamedTuple):
    """A set of tables of one version. Several may share a database; `key` is where the version
    is kept in `meta`."""

    key: str
    tables: MetaData
    version: int


meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", String, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("name", String, primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("config", Text, nullable=False),
)

episodes = Table(
    "episodes",
    metadata,
    Column("id", String, primary_key=True),
    Column("run", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("task", String, nullable=False),
    Column("group_id", String, nullable=False),
    Column("stop", String, nullable=False),
    Column("reward", Float),
    Column("failure_kind", String),
    Column("failure_cause", String),
    Column("policy_version", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("sampled_tokens", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("episodes_by_run", "run", "kind", "started_at"),
    Index("episodes_by_group", "run", "group_id"),
    Index("episodes_by_task", "task"),
)

metrics = Table(
    "metrics",
    metadata,
    Column("run", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("value", Float, nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("run", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("task_digest", String, primary_key=True),
    Column("tree_digest", String, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

ledger = Table(
    "ledger",
    metadata,
    Column("run", String, primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("prompt", String, primary_key=True),
    Column("group_id", String, nullable=False),
    Column("position", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("step", Integer),
    Column("policy_version", Integer),
    Column("reason", String),
    Column("episode_ids", Text),
    Column("changed_at", Float, nullable=False),
    UniqueConstraint("run", "group_id", name="one_row_per_group"),
    Index("ledger_by_state", "run", "state"),
)

batches = Table(
    "batches",
    metadata,
    Column("run", String, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("digest", String, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("policy_version", Integer),
    Column("policy_digest", String),
)

STORE = Schema("schema_version", metadata, 1)
