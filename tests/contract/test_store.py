"""What every store must do, on each database that is at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from tritune.errors import InputError, StoreError
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, JobKind, JobState, TrialState
from tritune.settings import Settings
from tritune.store import Cell, Store, study_number, trial_number

PLAN = LoadPlan(model="mnist", concurrency=8)
CONFIGURATION = Configuration(max_batch_size=16, dynamic_batching=True, preferred_batch_size=(4, 8))


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'with a space' / 'tritune.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    store = Store(url, clock=clock)
    yield store
    store.close()


def test_a_job_is_read_back_as_it_was_inserted(store: Store, clock: Clock) -> None:
    job = store.job(store.insert_job(JobKind.TUNE, {"model": "mnist", "µ": [1, 2]}))
    assert (job.kind, job.state, job.payload) == (JobKind.TUNE, JobState.WAITING, {"model": "mnist", "µ": [1, 2]})
    assert job.created_at == clock.now
    assert job.result is None


def test_the_oldest_waiting_job_is_claimed_once(store: Store) -> None:
    first, second = (store.insert_job(JobKind.TUNE, {}) for _ in range(2))
    claimed = [store.claim("a"), store.claim("b"), store.claim("c")]
    assert [job.id if job else None for job in claimed] == [first, second, None]


def test_many_workers_never_share_a_job(store: Store) -> None:
    jobs = [store.insert_job(JobKind.TUNE, {}) for _ in range(20)]

    def claim_all(name: str) -> list[int]:
        mine = []
        while (job := store.claim(name)) is not None:
            mine.append(job.id)
        return mine

    with ThreadPoolExecutor(4) as pool:
        claimed = [job for mine in pool.map(claim_all, "abcd") for job in mine]
    assert sorted(claimed) == jobs


def test_a_heartbeat_carries_progress_and_brings_back_the_wish_to_cancel(store: Store) -> None:
    job_id = store.insert_job(JobKind.LOAD_TEST, {})
    store.claim("a")
    assert store.heartbeat(job_id, "a", {"text": "Measuring", "fraction": 0.5})
    assert store.job(job_id).progress["fraction"] == 0.5
    store.request_cancel(job_id)
    assert not store.heartbeat(job_id, "a")
    assert store.job(job_id).state is JobState.RUNNING


def test_a_waiting_job_is_cancelled_at_once_and_a_finished_one_stays_finished(store: Store) -> None:
    waiting = store.insert_job(JobKind.TUNE, {})
    store.request_cancel(waiting)
    assert store.job(waiting).state is JobState.CANCELLED
    done = store.insert_job(JobKind.TUNE, {})
    store.claim("a")
    store.finish_job(done, "a", JobState.FINISHED, result={"x": 1})
    store.request_cancel(done)
    assert store.job(done).state is JobState.FINISHED
    assert store.claim("a") is None


def test_only_the_worker_that_holds_a_job_can_end_it(store: Store) -> None:
    job_id = store.insert_job(JobKind.TUNE, {})
    store.claim("a")
    assert not store.finish_job(job_id, "b", JobState.FINISHED)
    assert store.finish_job(job_id, "a", JobState.FAILED, error="why")
    assert not store.finish_job(job_id, "a", JobState.FINISHED)
    assert store.job(job_id).error == "why"


def test_the_jobs_of_a_lost_worker_fail_with_their_running_trials(store: Store, clock: Clock) -> None:
    job_id = store.insert_job(JobKind.LOAD_TEST, {})
    store.claim("a")
    finished = store.start_trial(job_id, PLAN, configuration=CONFIGURATION, labels={}, note="")
    store.finish_trial(finished, TrialState.FINISHED, measurement={"p99": 1})
    running = store.start_trial(job_id, PLAN, configuration=CONFIGURATION, labels={}, note="")
    clock.now += 5
    assert store.fail_lost(older_than_s=20) == ()
    clock.now += 20
    assert store.fail_lost(older_than_s=20) == (job_id,)
    assert store.job(job_id).state is JobState.FAILED
    assert store.job(job_id).error == "worker lost"
    assert store.trial(running).state is TrialState.FAILED
    assert store.trial(finished).state is TrialState.FINISHED
    assert not store.heartbeat(job_id, "a")


def test_a_finished_trial_never_changes_apart_from_its_note(store: Store) -> None:
    job_id = store.insert_job(JobKind.LOAD_TEST, {})
    trial_id = store.start_trial(job_id, PLAN, configuration=CONFIGURATION, labels={"who": "me"}, note="before")
    assert store.finish_trial(trial_id, TrialState.FINISHED, measurement={"x": 1}, provenance={"served_config": {}})
    assert not store.finish_trial(trial_id, TrialState.FAILED, error="late")
    store.annotate(trial_id, note="after")
    trial = store.trial(trial_id)
    assert (trial.state, trial.measurement, trial.note) == (TrialState.FINISHED, {"x": 1}, "after")
    assert trial.labels == {"who": "me"}
    assert trial.configuration == CONFIGURATION
    assert trial.plan == PLAN
    assert trial.to_dict()["x"] == 1


def test_trials_are_listed_newest_first_and_by_model(store: Store) -> None:
    job_id = store.insert_job(JobKind.LOAD_TEST, {})
    other = LoadPlan(model="other", rate_rps=5.0)
    ids = [store.start_trial(job_id, p, configuration=None, labels={}, note="") for p in (PLAN, other, PLAN)]
    assert [trial.trial_id for trial in store.trials()] == ids[::-1]
    assert [trial.trial_id for trial in store.trials(model="other")] == [ids[1]]


def test_a_running_trial_is_not_deleted(store: Store) -> None:
    job_id = store.insert_job(JobKind.LOAD_TEST, {})
    trial_id = store.start_trial(job_id, PLAN, configuration=None, labels={}, note="")
    with pytest.raises(InputError, match="Cancel it first"):
        store.delete_trial(trial_id)
    store.finish_trial(trial_id, TrialState.CANCELLED)
    store.delete_trial(trial_id)
    with pytest.raises(InputError, match="no trial"):
        store.trial(trial_id)


def test_ids_of_deleted_trials_are_not_given_again(store: Store) -> None:
    job_id = store.insert_job(JobKind.LOAD_TEST, {})
    first = store.start_trial(job_id, PLAN, configuration=None, labels={}, note="")
    store.finish_trial(first, TrialState.FAILED)
    store.delete_trial(first)
    assert store.start_trial(job_id, PLAN, configuration=None, labels={}, note="") != first


def test_a_second_store_on_the_same_database_sees_the_same_rows(store: Store, url: str) -> None:
    job_id = store.insert_job(JobKind.TUNE, {})
    again = Store(url)
    assert again.job(job_id).id == job_id
    again.close()


@pytest.mark.parametrize("text", ["", "x", "t", "12x", "s3", "t-1", "t1.5", "²"])
def test_what_is_not_a_trial_id_is_named(text: str) -> None:
    with pytest.raises(InputError, match="is not a trial"):
        trial_number(text)


@pytest.mark.parametrize("number", ["99", str(2**31 - 1), str(2**31), "9" * 23, "9" * 5000, "0" * 5000])
def test_an_id_that_no_row_has_is_named_whatever_its_size(store: Store, number: str) -> None:
    with pytest.raises(InputError, match=f"There is no trial t{number}"):
        store.trial(f"t{number}")
    with pytest.raises(InputError, match="There is no study"):
        store.job(study_number(f"s{number}"))
    with pytest.raises(InputError, match="There is no study"):
        store.request_cancel(study_number(f"s{number}"))


def test_ids_are_read_with_or_without_their_letter() -> None:
    assert trial_number("t12") == trial_number(" 12 ") == 12
    assert study_number("S7") == 7


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: "nonsense", "not a usable address"),
        (lambda folder: "sqlite:////proc/tritune/x.db", "cannot be made"),
        (lambda folder: f"sqlite:///{folder}", "cannot be written"),
        (lambda folder: f"sqlite:///{folder / 'text'}", "not a Tritune database"),
        (lambda folder: "postgresql://u:secret@127.0.0.1:1/x", "could not be used"),
    ],
)
def test_a_database_that_cannot_be_used_gets_one_sentence(make: object, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database at all " * 100)
    with pytest.raises(StoreError, match=sentence) as raised:
        Store(make(tmp_path))  # type: ignore[operator]
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a folder?", "a?b=c", "50%25", "a@b:c", "it's \\ ünï #1"])
def test_any_folder_can_hold_the_database(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "tritune.db"
    store = Store(Settings.from_env({"TRITUNE_RESULTS": str(path.parent)}).database_url)
    job_id = store.insert_job(JobKind.TUNE, {})
    store.close()
    assert path.is_file()
    assert [folder.name for folder in tmp_path.iterdir()] == [name]
    again = Store(f"sqlite:///{path}")
    assert again.job(job_id).id == job_id
    again.close()


@pytest.mark.parametrize(("column", "text"), [("payload", "{"), ("state", "odd"), ("kind", "")])
def test_a_row_that_cannot_be_read_gets_one_sentence(tmp_path: Path, column: str, text: str) -> None:
    import sqlalchemy as sa

    store = Store(f"sqlite:///{tmp_path / 'tritune.db'}")
    job_id = store.insert_job(JobKind.TUNE, {})
    with store._engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE jobs SET {column} = :text"), {"text": text})
    with pytest.raises(StoreError, match="cannot be read"):
        store.job(job_id)
    store.close()


def test_a_database_of_a_newer_tritune_is_left_alone(tmp_path: Path) -> None:
    import sqlalchemy as sa

    url = f"sqlite:///{tmp_path / 'tritune.db'}"
    Store(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE meta SET value = '999'"))
    engine.dispose()
    with pytest.raises(StoreError, match="Update Tritune"):
        Store(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_gets_one_sentence_and_keeps_what_was_finished(tmp_path: Path) -> None:
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]).returncode:
        pytest.skip("this machine does not let tests mount")
    try:
        store = Store(f"sqlite:///{disk / 'tritune.db'}")
        first = store.insert_job(JobKind.TUNE, {})

        def fill() -> None:
            for _ in range(1000):
                store.insert_job(JobKind.TUNE, {"x": "y" * 4000})

        with pytest.raises(StoreError, match=r"is full\. Free some space"):
            fill()
        assert store.job(first).id == first
        store.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- studies ---------------------------------------------------------------------------------------------------------

CELLS = [(PLAN, CONFIGURATION, Cell(0, 0), 1, 1), (PLAN, CONFIGURATION, Cell(1, 0), 1, 1)]


def test_a_rounds_trials_wait_in_their_order_and_each_is_claimed_once(store: Store) -> None:
    job_id = store.insert_job(JobKind.SWEEP, {})
    store.insert_trials(job_id, CELLS)
    first, second = reversed(store.trials(study_id=f"s{job_id}"))
    assert [first.cell, second.cell] == [Cell(0, 0), Cell(1, 0)]
    assert first.state is TrialState.WAITING
    assert [store.claim_trial(first.trial_id), store.claim_trial(first.trial_id)] == [True, False]
    store.finish_trial(first.trial_id, TrialState.FINISHED, measurement={"a": 1})
    store.end_waiting_trials(job_id, reason="enough")
    ended = [(trial.state, trial.error) for trial in reversed(store.trials(study_id=f"s{job_id}"))]
    assert ended == [(TrialState.FINISHED, None), (TrialState.CANCELLED, "enough")]
    assert store.trial(first.trial_id).configuration == CONFIGURATION


def test_a_lost_study_is_interrupted_keeps_its_waiting_trials_and_goes_on(store: Store, clock: Clock) -> None:
    job_id = store.insert_job(JobKind.SWEEP, {})
    store.claim("a")
    store.insert_trials(job_id, CELLS)
    running = store.trials(study_id=f"s{job_id}")[-1].trial_id
    store.claim_trial(running)
    clock.now += 60
    assert store.fail_lost(reason="worker lost") == (job_id,)
    assert store.job(job_id).state is JobState.INTERRUPTED
    states = [trial.state for trial in reversed(store.trials(study_id=f"s{job_id}"))]
    assert states == [TrialState.FAILED, TrialState.WAITING]
    assert store.requeue_job(job_id)
    assert not store.requeue_job(job_id)  # it waits already
    again = store.claim("b")
    assert again is not None
    assert again.id == job_id
    assert again.error is None


def test_notes_of_a_job_are_kept_one_after_another(store: Store) -> None:
    job_id = store.insert_job(JobKind.SWEEP, {})
    assert store.job(job_id).notes == ()
    store.note_job(job_id, "a", "first")
    store.note_job(job_id, "b", "second", good=True)
    assert [note["code"] for note in store.job(job_id).notes] == ["a", "b"]
    assert store.job(job_id).notes[1]["good"] is True


def test_a_study_is_deleted_with_its_trials_once_it_is_over(store: Store) -> None:
    job_id = store.insert_job(JobKind.SWEEP, {})
    store.insert_trials(job_id, CELLS)
    with pytest.raises(InputError, match="not over"):
        store.delete_job(job_id)
    store.request_cancel(job_id)
    assert len(store.delete_job(job_id)) == 2
    assert store.trials(study_id=f"s{job_id}") == ()
    with pytest.raises(InputError, match="no study or job"):
        store.job(job_id)


def test_installations_that_share_a_database_do_only_their_own_jobs(url: str, clock: Clock) -> None:
    here, there = (Store(url, home=home, clock=clock) for home in ("here", "there"))
    job_id = here.insert_job(JobKind.TUNE, {})
    assert there.claim("t") is None
    assert there.job(job_id).state is JobState.WAITING  # but all are seen
    claimed = here.claim("h")
    assert claimed is not None
    assert claimed.id == job_id
    assert there.fail_lost(older_than_s=0.0) == ()
    assert here.fail_lost(older_than_s=0.0) == (job_id,)
    there.requeue_job(job_id)  # resumed there, it is done there
    assert here.claim("h") is None
    moved = there.claim("t")
    assert moved is not None
    assert moved.id == job_id
    here.close(), there.close()


def test_a_database_of_the_first_schema_is_brought_up_to_date_with_its_rows(url: str, clock: Clock) -> None:
    store = Store(url, clock=clock)
    job_id = store.insert_job(JobKind.LOAD_TEST, {})
    trial_id = store.start_trial(job_id, PLAN, configuration=None, labels={}, note="")
    with store._engine.begin() as connection:
        for table, column in (("jobs", "notes"), ("jobs", "home"), ("trials", "cell")):
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        connection.execute(sa.text("UPDATE meta SET value = '1' WHERE key = 'schema'"))
    store.close()
    with ThreadPoolExecutor(4) as pool:  # several programs of the new version begin at once
        opened = list(pool.map(lambda _: Store(url, home="h", clock=clock), range(4)))
    assert opened[0].trial(trial_id).cell is None
    assert opened[0].job(job_id).notes == ()
    claimed = opened[1].claim("w")  # of a time that knew no homes: anybody's
    assert claimed is not None
    assert claimed.id == job_id
    for each in opened:
        each.close()
