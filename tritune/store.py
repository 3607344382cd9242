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
from typing import Any

import sqlalchemy as sa

from tritune.errors import InputError, StoreError
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, JobKind, JobState, TrialState
from tritune.settings import Settings
from tritune.store_rows import Cell, Job, Trial, columns, job_of, study_number, trial_number, trial_of
from tritune.store_tables import jobs as _jobs
from tritune.store_tables import open_engine, prepare, sentence, shown
from tritune.store_tables import trials as _trials

__all__ = ["LOST_AFTER_S", "Cell", "Job", "Store", "Trial", "study_number", "trial_number"]

LOST_AFTER_S = 20.0


class Store:
    """The contract of jobs and trials, the same on SQLite and PostgreSQL.

    `home` names the installation: several may share a database, each with its own worker and server, and a job is done
    where it was asked for. `clock` gives unix seconds. Every method may raise StoreError, and InputError for an unknown
    id.
    """

    def __init__(self, url: str, *, home: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self.home = home
        self._clock = clock
        self._engine = open_engine(url)
        with self._transaction() as connection:
            prepare(connection)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(sentence(error, self._engine.url)) from error
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            # What a damaged file, another program or another version of Tritune left in a row.
            raise StoreError(
                f"A row of {shown(self._engine.url)} cannot be read ({type(error).__name__}: {error}). Use the "
                "Tritune that wrote it, or move the database away."
            ) from error

    @classmethod
    def of(cls, settings: Settings) -> Store:
        """The store of an installation."""
        return cls(settings.database_url, home=settings.home)

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
                    home=self.home,
                )
            )
            return int(inserted.scalar_one())

    def job(self, job_id: int) -> Job:
        """One job. Raises InputError where there is none."""
        with self._transaction() as connection:
            row = connection.execute(sa.select(_jobs).where(_jobs.c.id == job_id)).one_or_none()
            found = None if row is None else job_of(row)
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
            return tuple(job_of(row) for row in connection.execute(query))

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
        """Take the oldest waiting job of this home, or None. Two workers never get the same one."""
        now = self._clock()
        ours = self._ours()
        while True:
            with self._transaction() as connection:
                job_id = connection.scalar(
                    sa.select(sa.func.min(_jobs.c.id)).where(_jobs.c.state == str(JobState.WAITING), ours)
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

    def _ours(self) -> sa.ColumnElement[bool]:
        """Jobs that were asked for here, or by a Tritune that knew no homes."""
        return sa.true() if self.home is None else (_jobs.c.home == self.home) | _jobs.c.home.is_(None)

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
        """End the running jobs of this home (and their trials) whose heartbeat is older; returns their ids.

        `older_than_s` 0 ends all of them: for the worker that has just won the installation's lock. A study is
        interrupted and can be resumed; anything else has failed.
        """
        limit = self._clock() - older_than_s
        stale = (_jobs.c.state == str(JobState.RUNNING)) & (_jobs.c.heartbeat_at <= limit) & self._ours()
        is_study = _jobs.c.kind == str(JobKind.SWEEP)
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
                    .values(
                        state=sa.case((is_study, str(JobState.INTERRUPTED)), else_=str(JobState.FAILED)),
                        error=reason,
                        finished_at=self._clock(),
                    )
                )
        return lost

    def requeue_job(self, job_id: int) -> bool:
        """Let an ended job wait again, here; returns False where it has not ended. What it did is kept."""
        self.job(job_id)
        ended = [str(state) for state in JobState if state.is_final]
        with self._transaction() as connection:
            done = connection.execute(
                _jobs.update()
                .where(_jobs.c.id == job_id, _jobs.c.state.in_(ended))
                .values(
                    state=str(JobState.WAITING),
                    progress={"text": "Waiting for the worker", "fraction": None},
                    cancel_requested=False,
                    error=None,
                    finished_at=None,
                    home=self.home,
                )
            )
        return bool(done.rowcount)

    def note_job(self, job_id: int, code: str, message: str, **more: Any) -> None:
        """Keep what happened to a job, whatever ends its worker. Only the worker of a running job adds notes."""
        note = {"code": code, "message": message, "at": self._clock(), **more}
        with self._transaction() as connection:
            notes = connection.scalar(sa.select(_jobs.c.notes).where(_jobs.c.id == job_id)) or []
            connection.execute(_jobs.update().where(_jobs.c.id == job_id).values(notes=[*notes, note]))

    def change_payload(self, job_id: int, payload: Mapping[str, Any]) -> None:
        """Write what a running job has learned and needs again when it is resumed."""
        with self._transaction() as connection:
            connection.execute(_jobs.update().where(_jobs.c.id == job_id).values(payload=dict(payload)))

    def insert_import(
        self,
        payload: Mapping[str, Any],
        trials: Sequence[Trial],
        *,
        created_at: float,
        result: Mapping[str, Any] | None = None,
        notes: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, tuple[str, ...]]:
        """Record a study that was measured elsewhere, all of it or nothing; returns its job's id and the new ids of its
        trials, in their order. Which ids they had elsewhere does not matter here."""
        job = {
            "kind": str(JobKind.IMPORT),
            "payload": dict(payload),
            "state": str(JobState.FINISHED),
            "progress": {},
            "result": dict(result) if result is not None else None,
            "cancel_requested": False,
            "created_at": created_at,
            "finished_at": self._clock(),
            "notes": [dict(note) for note in notes],
            "home": self.home,
        }
        with self._transaction() as connection:
            job_id = int(connection.execute(_jobs.insert().returning(_jobs.c.id).values(**job)).scalar_one())
            rows = (
                _trials.insert().returning(_trials.c.id).values(job_id=job_id, **columns(trial)) for trial in trials
            )
            return job_id, tuple(f"t{connection.execute(row).scalar_one()}" for row in rows)

    def delete_job(self, job_id: int) -> tuple[str, ...]:
        """Forget a job that has ended, with its trials; returns their ids. Raises InputError while it is not over."""
        if not self.job(job_id).state.is_final:
            raise InputError(f"s{job_id} is not over. Cancel it first: `tritune study cancel s{job_id}`.")
        with self._transaction() as connection:
            numbers = tuple(connection.scalars(sa.select(_trials.c.id).where(_trials.c.job_id == job_id)))
            connection.execute(_trials.delete().where(_trials.c.job_id == job_id))
            connection.execute(_jobs.delete().where(_jobs.c.id == job_id))
        return tuple(f"t{number}" for number in numbers)

    # --- trials ---------------------------------------------------------------------------------------

    def insert_trials(self, job_id: int, rows: Sequence[tuple[LoadPlan, Configuration, Cell, int, int]]) -> None:
        """Insert a round's waiting trials, all or none: (plan, configuration, cell, round, attempt) each, in the order
        in which they are to be measured."""
        values = [
            {
                "job_id": job_id,
                "round": round,
                "attempt": attempt,
                "state": str(TrialState.WAITING),
                "model": plan.model,
                "configuration": configuration.to_dict(),
                "plan": plan.to_dict(),
                "labels": {},
                "note": "",
                "provenance": {},
                "created_at": self._clock(),
                "cell": cell.to_dict(),
            }
            for plan, configuration, cell, round, attempt in rows
        ]
        if values:
            with self._transaction() as connection:
                connection.execute(_trials.insert(), values)

    def claim_trial(self, trial_id: str) -> bool:
        """Take a waiting trial; returns False where it does not wait any more."""
        with self._transaction() as connection:
            claimed = connection.execute(
                _trials.update()
                .where(_trials.c.id == trial_number(trial_id), _trials.c.state == str(TrialState.WAITING))
                .values(state=str(TrialState.RUNNING), created_at=self._clock())
            )
        return bool(claimed.rowcount)

    def end_waiting_trials(self, job_id: int, *, reason: str | None = None) -> None:
        """Cancel the trials of a job that still wait."""
        with self._transaction() as connection:
            connection.execute(
                _trials.update()
                .where(_trials.c.job_id == job_id, _trials.c.state == str(TrialState.WAITING))
                .values(state=str(TrialState.CANCELLED), error=reason, finished_at=self._clock())
            )

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
            found = None if row is None else trial_of(row)
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
            return tuple(trial_of(row) for row in connection.execute(query))

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
