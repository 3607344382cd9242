"""The tables of the store, how a database of an earlier Tritune is brought up to date, and how one is opened.

Belongs here: schema, addresses, what a database's failure means in plain words. Never: what a job or a trial is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tritune.errors import StoreError
from tritune.settings import SQLITE

SCHEMA_VERSION = 2

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.String(255), nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("payload", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("progress", sa.JSON, nullable=False),
    sa.Column("result", sa.JSON(none_as_null=True)),
    sa.Column("error", sa.Text),
    sa.Column("cancel_requested", sa.Boolean, nullable=False, default=False),
    sa.Column("worker", sa.String(128)),
    sa.Column("heartbeat_at", sa.Float(53)),
    sa.Column("created_at", sa.Float(53), nullable=False),
    sa.Column("started_at", sa.Float(53)),
    sa.Column("finished_at", sa.Float(53)),
    sa.Column("notes", sa.JSON(none_as_null=True)),
    sa.Column("home", sa.String(64)),
    sqlite_autoincrement=True,
)

trials = sa.Table(
    "trials",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id"), nullable=False, index=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("model", sa.String(64), nullable=False, index=True),
    sa.Column("configuration", sa.JSON(none_as_null=True)),
    sa.Column("plan", sa.JSON, nullable=False),
    sa.Column("labels", sa.JSON, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("measurement", sa.JSON(none_as_null=True)),
    sa.Column("provenance", sa.JSON, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("created_at", sa.Float(53), nullable=False),
    sa.Column("finished_at", sa.Float(53)),
    sa.Column("cell", sa.JSON(none_as_null=True)),
    sqlite_autoincrement=True,
)

ADDED = {2: ((jobs, "notes"), (jobs, "home"), (trials, "cell"))}
"""The columns that each schema brought, all of them nullable."""


def open_engine(url: str) -> sa.Engine:
    """An engine for TRITUNE_DATABASE_URL, its SQLite in WAL mode. Raises StoreError where the address is of no use."""
    try:
        parsed = _parsed(url)
        engine = sa.create_engine(parsed, pool_pre_ping=not parsed.drivername.startswith("sqlite"))
    except (sa.exc.ArgumentError, ModuleNotFoundError) as error:
        raise StoreError(
            f"TRITUNE_DATABASE_URL={url!r} is not a usable address: {error}. "
            "Use sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE."
        ) from error
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine, parsed.database)
    return engine


def prepare(connection: sa.Connection) -> None:
    """Make the tables, or bring those of an earlier Tritune up to date. Two that do so at once both succeed."""
    metadata.create_all(connection)
    version = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema"))
    if version is None:
        connection.execute(meta.insert().values(key="schema", value=str(SCHEMA_VERSION)))
        return
    if int(version) > SCHEMA_VERSION:
        raise StoreError(f"The database has schema {version} and this Tritune knows {SCHEMA_VERSION}. Update Tritune.")
    if int(version) == SCHEMA_VERSION:
        return
    # The first who writes holds the row (or the file) until the commit; the second then finds nothing left to do.
    connection.execute(meta.update().where(meta.c.key == "schema").values(value=str(SCHEMA_VERSION)))
    inspector = sa.inspect(connection)
    for number in range(int(version) + 1, SCHEMA_VERSION + 1):
        for table, name in ADDED[number]:
            if name not in {column["name"] for column in inspector.get_columns(table.name)}:
                kind = table.c[name].type.compile(connection.dialect)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}"))


def _prepare_sqlite(engine: sa.Engine, database: str | None) -> None:
    if database and database != ":memory:":
        try:
            Path(database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The folder of {database} cannot be made: {error.strerror}. Set TRITUNE_RESULTS to another."
            ) from error

    def pragmas(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for pragma in ("busy_timeout=15000", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    sa.event.listen(engine, "connect", pragmas)


def _parsed(url: str) -> sa.URL:
    """The address. All that follows sqlite:/// is a path, also what would be a query elsewhere (`a folder?`)."""
    if url.startswith(SQLITE):
        return sa.URL.create("sqlite", database=url.removeprefix(SQLITE))
    parsed = sa.engine.make_url(url)
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername in ("postgres", "postgresql") else parsed


def shown(url: sa.URL) -> str:
    return f"{SQLITE}{url.database}" if url.drivername == "sqlite" else url.render_as_string(hide_password=True)


def sentence(error: sa.exc.SQLAlchemyError, url: sa.URL) -> str:
    where = shown(url)
    text = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    if "full" in text and "disk" in text:
        return f"The disk under {where} is full. Free some space; everything that was finished is kept."
    if "locked" in text:
        return f"The database {where} stayed locked. End other programs that hold it and try again."
    if "readonly" in text or "unable to open" in text:
        return f"The database {where} cannot be written. Check the folder's rights or set TRITUNE_RESULTS."
    if "malformed" in text or "not a database" in text:
        return f"The file behind {where} is not a Tritune database. Move it away or set TRITUNE_DATABASE_URL."
    return f"The database {where} could not be used: {text}. Check TRITUNE_DATABASE_URL and that it is running."
