"""Opening the database, and its two kinds of transactions."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from journeyman.config.home import home_dir
from journeyman.store.errors import translated
from journeyman.store.schema import STORE, Schema, meta
from journeyman.types.failure import UserError

BUSY_TIMEOUT_S = 30.0
_WRITES = "journeyman_writes"


def default_url() -> str:
    """SQLite in `$JOURNEYMAN_HOME/journeyman.db`."""
    return f"sqlite:///{home_dir() / 'journeyman.db'}"


class Database:
    """One database with the tables of a schema in it. Safe to use from many threads and processes.

    SQLite runs in WAL mode with full synchronisation: a committed transaction survives the
    loss of the process and of the machine; readers never wait for the writer.
    """

    def __init__(self, url: str, schema: Schema = STORE) -> None:
        """Raises UserError for a URL of no known kind and for a database of a newer schema."""
        self._url = _parse(url)
        self.shown_url = self._url.render_as_string(hide_password=True)
        self.engine = _engine(self._url)
        with translated(self.shown_url):
            _prepare_schema(self.engine, self.shown_url, schema)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one consistent state."""
        with translated(self.shown_url), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that commits whole or not at all; writers wait for each other."""
        with translated(self.shown_url):
            writing = self.engine.execution_options(**{_WRITES: True})
            with writing.begin() as connection:
                yield connection

    def close(self) -> None:
        """Give back the connections. The object may be used again."""
        self.engine.dispose()


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise UserError(
            f"{url!r} is not a store URL", "use sqlite:////path/file.db or postgresql://…"
        ) from error
    backend = parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise UserError(
            f"a store of kind {backend!r} is not supported",
            "use sqlite:////path/file.db or postgresql://user@host/database",
        )
    if backend == "postgresql" and parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        try:
            return create_engine(url, pool_pre_ping=True)
        except ModuleNotFoundError as error:
            raise UserError(
                f"the driver of {url.drivername} is not installed",
                "run: pip install 'journeyman[postgresql]'",
            ) from error
    if not url.database or url.database == ":memory:":
        raise UserError(
            "a store in memory is lost with its process", "name a file: sqlite:////path/file.db"
        )
    Path(url.database).expanduser().parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions are begun by _begin_sqlite alone
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once when another process wrote
    # in between; one that takes the write lock at its start waits instead.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare_schema(engine: Engine, shown_url: str, schema: Schema) -> None:
    with engine.execution_options(**{_WRITES: True}).begin() as connection:
        present = set(inspect(connection).get_table_names())
        found = None
        if "meta" in present:
            found = connection.scalar(select(meta.c.value).where(meta.c.key == schema.key))
        if found is None:
            foreign = sorted(present & set(schema.tables.tables) - {"meta"})
            if foreign:
                raise UserError(
                    f"{shown_url} holds tables of something else: {', '.join(foreign)}",
                    "name another database for the store",
                )
            meta.create(connection, checkfirst=True)
            schema.tables.create_all(connection)
            row = {"key": schema.key, "value": str(schema.version)}
            connection.execute(meta.insert().values(row))
            return
    if found != str(schema.version):
        raise UserError(
            f"{shown_url} has {schema.key.replace('_', ' ')} {found}; this Journeyman knows "
            f"version {schema.version}",
            "update Journeyman, or name another store",
        )
