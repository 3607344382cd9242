"""Jobs and trials in a database: SQLite (WAL) by default, PostgreSQL by URL.

The row is the job: whoever wants something done inserts a row and reads it; one worker claims it, heartbeats
and finishes it. Every change of state is one conditional UPDATE, so that two workers or a late one cannot
both win. A finished trial never changes, apart from its labels and note.

Belongs here: transactions, claims, the schema. Never: formulas, processes, files of a trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tritune.errors import InputError, StoreError
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, JobKind, JobState, TrialState
from tritune.settings import SQLITE

SCHEMA_VERSION = 2
LOST_AFTER_S = 20.0
MAX_ID = 2**31 - 1  # what a database's INTEGER holds

_metadata = sa.MetaData()

_meta = sa.Table(
    "meta",
    _metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.String(255), nullable=False),
)

_jobs = sa.Table(
    "jobs",
    _metadata,
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
    sqlite_autoincrement=True,
)

_trials = sa.Table(
    "trials",
    _metadata,
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

_ADDED = {2: ((_jobs, "notes"), (_trials, "cell"))}
"""The columns that each schema brought, all of them nullable."""


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work as the store has it. Times are unix seconds."""

    id: int
    kind: JobKind
    payload: Mapping[str, Any]
    state: JobState
    progress: Mapping[str, Any]
    result: Mapping[str, Any] | None
    error: str | None
    cancel_requested: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    notes: tuple[Mapping[str, Any], ...] = ()
    """What happened on the way: {"code", "message", "at"}, kept whatever ends the worker."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a trial stands in a study: its candidate and load by number, and what it is there for.

    `role`: `measure`; `drift`: the round's first cell once more; `warm`: served alone, for the A/A of side by side.
    """

    candidate: int
    load: int
    role: str = "measure"

    def to_dict(self) -> dict[str, Any]:
        return {"candidate": self.candidate, "load": self.load, "role": self.role}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Cell:
        return cls(int(document["candidate"]), int(document["load"]), str(document.get("role", "measure")))


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured (or failed) load test. `measurement` is `Measurement.to_dict()`. Times are unix seconds."""

    trial_id: str
    study_id: str
    state: TrialState
    model: str
    configuration: Configuration | None
    plan: LoadPlan
    labels: Mapping[str, str]
    note: str
    measurement: Mapping[str, Any] | None
    provenance: Mapping[str, Any]
    error: str | None
    created_at: float
    finished_at: float | None
    round: int
    attempt: int
    cell: Cell | None = None

    @property
    def load(self) -> dict[str, Any]:
        """What must be equal for two trials to be comparable."""
        return self.plan.load()

    def to_dict(self) -> dict[str, Any]:
        """The document that `tritune load --json` prints."""
        return {
            "trial_id": self.trial_id,
            "study_id": self.study_id,
            "state": str(self.state),
            "model": self.model,
            "configuration": self.configuration.to_dict() if self.configuration else None,
            "load": self.load,
            "round": self.round,
            "attempt": self.attempt,
            "cell": self.cell.to_dict() if self.cell else None,
            **(self.measurement or {}),
            "served_config": self.provenance.get("served_config"),
            "labels": dict(self.labels),
            "note": self.note,
            "error": self.error,
            "created_at": self.created_at,
            "finished_at": self.finished_at,
            "plan": self.plan.to_dict(),
            "provenance": {key: value for key, value in self.provenance.items() if key != "served_config"},
        }


def trial_number(trial_id: str) -> int:
    """The row behind `t12` (or `12`). Raises InputError for anything else."""
    return _row_number(trial_id, "trial", "Trials are named t1, t2, …")


def study_number(study_id: str) -> int:
    """The row behind `s7` (or `7`). Raises InputError for anything else."""
    return _row_number(study_id, "study", "Studies are named s1, s2, …")


def _row_number(name: str, kind: str, rule: str) -> int:
    text = name.strip().lower().removeprefix(kind[0])
    if not text.isascii() or not text.isdigit():
        raise InputError(f"{name!r} is not a {kind}. {rule}; `tritune study list` shows them.")
    digits = text.lstrip("0") or "0"
    if len(digits) > 10 or int(digits) > MAX_ID:
        raise InputError(f"There is no {kind} {name}. `tritune study list` shows those that exist.")
    return int(digits)


def _parsed(url: str) -> sa.URL:
    """The address. All that follows sqlite:/// is a path, also what would be a query elsewhere (`a folder?`)."""
    if url.startswith(SQLITE):
        return sa.URL.create("sqlite", database=url.removeprefix(SQLITE))
    parsed = sa.engine.make_url(url)
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername in ("postgres", "postgresql") else parsed


def _shown(url: sa.URL) -> str:
    return f"{SQLITE}{url.database}" if url.drivername == "sqlite" else url.render_as_string(hide_password=True)


def _sentence(error: sa.exc.SQLAlchemyError, url: sa.URL) -> str:
    where = _shown(url)
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


class Store:
    """The contract of jobs and trials, the same on SQLite and PostgreSQL.

    `clock` gives unix seconds. Every method may raise StoreError, and InputError for an unknown id.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self._clock = clock
        try:
            parsed = _parsed(url)
            self._engine = sa.create_engine(parsed, pool_pre_ping=not parsed.drivername.startswith("sqlite"))
        except (sa.exc.ArgumentError, ModuleNotFoundError) as error:
            raise StoreError(
                f"TRITUNE_DATABASE_URL={url!r} is not a usable address: {error}. "
                "Use sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE."
            ) from error
        if self._engine.dialect.name == "sqlite":
            self._prepare_sqlite(parsed.database)
        with self._transaction() as connection:
            self._prepare_schema(connection)

    def _prepare_schema(self, connection: sa.Connection) -> None:
        """Make the tables, or bring those of an earlier Tritune up to date. Two that do so at once both succeed."""
        _metadata.create_all(connection)
        version = connection.scalar(sa.select(_meta.c.value).where(_meta.c.key == "schema"))
        if version is None:
            connection.execute(_meta.insert().values(key="schema", value=str(SCHEMA_VERSION)))
            return
        if int(version) > SCHEMA_VERSION:
            raise StoreError(
                f"The database has schema {version} and this Tritune knows {SCHEMA_VERSION}. Update Tritune."
            )
        if int(version) == SCHEMA_VERSION:
            return
        # The first who writes holds the row (or the file) until the commit; the second then finds nothing left to do.
        connection.execute(_meta.update().where(_meta.c.key == "schema").values(value=str(SCHEMA_VERSION)))
        inspector = sa.inspect(connection)
        for number in range(int(version) + 1, SCHEMA_VERSION + 1):
            for table, name in _ADDED[number]:
                if name not in {column["name"] for column in inspector.get_columns(table.name)}:
                    kind = table.c[name].type.compile(self._engine.dialect)
                    connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {name} {kind}"))

    def _prepare_sqlite(self, database: str | None) -> None:
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

        sa.event.listen(self._engine, "connect", pragmas)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(_sentence(error, self._engine.url)) from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            # What a damaged file, another program or another version of Tritune left in a row.
            raise StoreError(
                f"A row of {_shown(self._engine.url)} cannot be read ({type(error).__name__}: {error}). Use the "
                "Tritune that wrote it, or move the database away."
            ) from error

    def close(self) -> None:
        """Give the connections back. The store can still be used afterwards."""
        self._engine.dispose()

    # --- jobs -----------------------------------------------------------------------------------------

    def insert_job(self, kind: JobKind, payload: Mapping[str, Any]) -> int:
        """Ask for work; returns the job's id."""
        with self._transaction() as connection:
            inserted = connection.execute(
                _jobs.insert()
                .returning(_jobs.c.id)
                .values(
                    kind=str(kind),
                    payload=dict(payload),
                    state=str(JobState.WAITING),
                    progress={"text": "Waiting for the worker", "fraction": None},
                    cancel_requested=False,
                    created_at=self._clock(),
                )
            )
            return int(inserted.scalar_one())

    def job(self, job_id: int) -> Job:
        """One job. Raises InputError where there is none."""
        with self._transaction() as connection:
            row = connection.execute(sa.select(_jobs).where(_jobs.c.id == job_id)).one_or_none()
            found = None if row is None else _job(row)
        if found is None:
            raise InputError(f"There is no study or job {job_id}. `tritune study list` shows those that exist.")
        return found

    def jobs(
        self, kinds: Sequence[JobKind] | None = None, *, active: bool = False, limit: int = 100
    ) -> tuple[Job, ...]:
        """Jobs, newest first; `active` leaves out those that have ended."""
        query = sa.select(_jobs).order_by(_jobs.c.id.desc()).limit(limit)
        if kinds is not None:
            query = query.where(_jobs.c.kind.in_([str(kind) for kind in kinds]))
        if active:
            query = query.where(_jobs.c.state.in_([str(JobState.WAITING), str(JobState.RUNNING)]))
        with self._transaction() as connection:
            return tuple(_job(row) for row in connection.execute(query))

    def request_cancel(self, job_id: int) -> None:
        """Cancel a waiting job at once; ask the worker to end a running one. One that has ended stays as it is."""
        self.job(job_id)
        now = self._clock()
        with self._transaction() as connection:
            connection.execute(
                _jobs.update()
                .where(_jobs.c.id == job_id, _jobs.c.state == str(JobState.WAITING))
                .values(state=str(JobState.CANCELLED), cancel_requested=True, finished_at=now)
            )
            connection.execute(
                _jobs.update()
                .where(_jobs.c.id == job_id, _jobs.c.state == str(JobState.RUNNING))
                .values(cancel_requested=True)
            )

    def claim(self, worker: str) -> Job | None:
        """Take the oldest waiting job, or None. Two workers never get the same one."""
        now = self._clock()
        while True:
            with self._transaction() as connection:
                job_id = connection.scalar(
                    sa.select(sa.func.min(_jobs.c.id)).where(_jobs.c.state == str(JobState.WAITING))
                )
                if job_id is None:
                    return None
            with self._transaction() as connection:
                claimed = connection.execute(
                    _jobs.update()
                    .where(_jobs.c.id == job_id, _jobs.c.state == str(JobState.WAITING))
                    .values(state=str(JobState.RUNNING), worker=worker, heartbeat_at=now, started_at=now)
                )
            if claimed.rowcount:
                return self.job(job_id)

    def heartbeat(self, job_id: int, worker: str, progress: Mapping[str, Any] | None = None) -> bool:
        """Say that the job is alive; returns whether it should go on (False: cancelled, or no longer ours)."""
        values: dict[str, Any] = {"heartbeat_at": self._clock()}
        if progress is not None:
            values["progress"] = dict(progress)
        mine = (_jobs.c.id == job_id) & (_jobs.c.worker == worker) & (_jobs.c.state == str(JobState.RUNNING))
        with self._transaction() as connection:
            connection.execute(_jobs.update().where(mine).values(**values))
            cancel = connection.scalar(sa.select(_jobs.c.cancel_requested).where(mine))
        return cancel is not None and not cancel

    def finish_job(
        self,
        job_id: int,
        worker: str,
        state: JobState,
        *,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> bool:
        """End a running job of this worker; returns False where it is no longer ours."""
        with self._transaction() as connection:
            done = connection.execute(
                _jobs.update()
                .where(_jobs.c.id == job_id, _jobs.c.worker == worker, _jobs.c.state == str(JobState.RUNNING))
                .values(
                    state=str(state),
                    result=dict(result) if result is not None else None,
                    error=error,
                    finished_at=self._clock(),
                )
            )
        return bool(done.rowcount)

    def fail_lost(self, *, older_than_s: float = LOST_AFTER_S, reason: str = "worker lost") -> tuple[int, ...]:
        """End the running jobs (and their trials) whose heartbeat is older; returns their ids.

        `older_than_s` 0 ends all of them: for the worker that has just won the installation's lock.
        """
        limit = self._clock() - older_than_s
        stale = (_jobs.c.state == str(JobState.RUNNING)) & (_jobs.c.heartbeat_at <= limit)
        with self._transaction() as connection:
            lost = tuple(connection.scalars(sa.select(_jobs.c.id).where(stale)))
            if lost:
                connection.execute(
                    _trials.update()
                    .where(_trials.c.job_id.in_(lost), _trials.c.state == str(TrialState.RUNNING))
                    .values(state=str(TrialState.FAILED), error=reason, finished_at=self._clock())
                )
                connection.execute(
                    _jobs.update()
                    .where(_jobs.c.id.in_(lost), stale)
                    .values(state=str(JobState.FAILED), error=reason, finished_at=self._clock())
                )
        return lost

    # --- trials ---------------------------------------------------------------------------------------

    def start_trial(
        self,
        job_id: int,
        plan: LoadPlan,
        *,
        configuration: Configuration | None,
        labels: Mapping[str, str],
        note: str,
        round: int = 1,
        attempt: int = 1,
    ) -> str:
        """Record a trial that begins now; returns its id (`t12`)."""
        with self._transaction() as connection:
            inserted = connection.execute(
                _trials.insert()
                .returning(_trials.c.id)
                .values(
                    job_id=job_id,
                    round=round,
                    attempt=attempt,
                    state=str(TrialState.RUNNING),
                    model=plan.model,
                    configuration=configuration.to_dict() if configuration else None,
                    plan=plan.to_dict(),
                    labels=dict(labels),
                    note=note,
                    provenance={},
                    created_at=self._clock(),
                )
            )
            return f"t{inserted.scalar_one()}"

    def finish_trial(
        self,
        trial_id: str,
        state: TrialState,
        *,
        measurement: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> bool:
        """End a running trial, once; returns False where it had ended already."""
        with self._transaction() as connection:
            done = connection.execute(
                _trials.update()
                .where(_trials.c.id == trial_number(trial_id), _trials.c.state == str(TrialState.RUNNING))
                .values(
                    state=str(state),
                    measurement=dict(measurement) if measurement is not None else None,
                    provenance=dict(provenance or {}),
                    error=error,
                    finished_at=self._clock(),
                )
            )
        return bool(done.rowcount)

    def trial(self, trial_id: str) -> Trial:
        """One trial. Raises InputError where there is none."""
        query = sa.select(_trials).where(_trials.c.id == trial_number(trial_id))
        with self._transaction() as connection:
            row = connection.execute(query).one_or_none()
            found = None if row is None else _trial(row)
        if found is None:
            raise InputError(f"There is no trial {trial_id}. `tritune study list` shows those that exist.")
        return found

    def trials(
        self,
        *,
        model: str | None = None,
        state: TrialState | None = None,
        study_id: str | None = None,
        limit: int = 500,
    ) -> tuple[Trial, ...]:
        """Trials, newest first."""
        query = sa.select(_trials).order_by(_trials.c.id.desc()).limit(limit)
        if model is not None:
            query = query.where(_trials.c.model == model)
        if state is not None:
            query = query.where(_trials.c.state == str(state))
        if study_id is not None:
            query = query.where(_trials.c.job_id == study_number(study_id))
        with self._transaction() as connection:
            return tuple(_trial(row) for row in connection.execute(query))

    def annotate(self, trial_id: str, *, labels: Mapping[str, str] | None = None, note: str | None = None) -> None:
        """Change a trial's labels or note: the only part of a finished trial that may change."""
        self.trial(trial_id)
        values: dict[str, Any] = {}
        if labels is not None:
            values["labels"] = dict(labels)
        if note is not None:
            values["note"] = note
        if values:
            with self._transaction() as connection:
                connection.execute(_trials.update().where(_trials.c.id == trial_number(trial_id)).values(**values))

    def delete_trial(self, trial_id: str) -> None:
        """Forget a trial that has ended. Raises InputError while it runs."""
        if self.trial(trial_id).state is TrialState.RUNNING:
            raise InputError(f"Trial {trial_id} is running. Cancel it first.")
        with self._transaction() as connection:
            connection.execute(_trials.delete().where(_trials.c.id == trial_number(trial_id)))


def _job(row: Any) -> Job:
    return Job(
        id=row.id,
        kind=JobKind(row.kind),
        payload=row.payload,
        state=JobState(row.state),
        progress=row.progress or {},
        result=row.result,
        error=row.error,
        cancel_requested=bool(row.cancel_requested),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        notes=tuple(row.notes or ()),
    )


def _trial(row: Any) -> Trial:
    return Trial(
        trial_id=f"t{row.id}",
        study_id=f"s{row.job_id}",
        state=TrialState(row.state),
        model=row.model,
        configuration=Configuration.from_dict(row.configuration) if row.configuration else None,
        plan=LoadPlan.from_dict(row.plan),
        labels=row.labels,
        note=row.note,
        measurement=row.measurement,
        provenance=row.provenance,
        error=row.error,
        created_at=row.created_at,
        finished_at=row.finished_at,
        round=row.round,
        attempt=row.attempt,
        cell=Cell.from_dict(row.cell) if row.cell else None,
    )
