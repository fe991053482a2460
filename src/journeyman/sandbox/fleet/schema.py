"""The fleet's tables. They may lie in the store's database or in one of their own."""

from sqlalchemy import Column, Float, Index, Integer, LargeBinary, MetaData, String, Table, Text

from journeyman.store.schema import Schema

_metadata = MetaData()

tokens = Table(
    "fleet_tokens",
    _metadata,
    Column("digest", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    Column("expires_at", Float),
    Index("fleet_tokens_by_name", "kind", "name"),
)

templates = Table(
    "fleet_templates",
    _metadata,
    Column("id", String, primary_key=True),
    Column("spec", LargeBinary, nullable=False),
)

disowned = Table(
    "fleet_disowned",
    _metadata,
    Column("node", String, primary_key=True),
    Column("local", String, primary_key=True),
)

sandboxes = Table(
    "fleet_sandboxes",
    _metadata,
    Column("sandbox", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("node", String, nullable=False),
    Column("local", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("target", String, nullable=False),
    Column("move", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("snapshot", String, nullable=False),
    Column("request", Text, nullable=False),
    Column("lease_s", Float, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    Index("fleet_sandboxes_by_node", "node"),
    Index("fleet_sandboxes_by_state", "state"),
)

FLEET = Schema("fleet_schema_version", _metadata, 1)
