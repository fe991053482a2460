"""The fleet's tables. They may lie in the store's database or in one of their own."""

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text

from journeyman.store.schema import Schema

_metadata = MetaData()

nodes = Table(
    "fleet_nodes",
    _metadata,
    Column("id", String, primary_key=True),
    Column("state", String, nullable=False),
    Column("body", Text, nullable=False),
    Column("changed_at", Float, nullable=False),
)

sandboxes = Table(
    "fleet_sandboxes",
    _metadata,
    Column("sandbox", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("node", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("target", String, nullable=False),
    Column("move", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("snapshot", String, nullable=False),
    Column("request", Text, nullable=False),
    Column("changed_at", Float, nullable=False),
    Index("fleet_sandboxes_by_node", "node"),
    Index("fleet_sandboxes_by_state", "state"),
)

FLEET = Schema("fleet_schema_version", _metadata, 1)
