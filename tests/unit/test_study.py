"""A study's rounds without a server: what is measured when, what is left out, what ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tritune import model_config, study, study_space, worker
from tritune.errors import InputError, LoadTestError, ServerDownError, ServerError, TritonRefusedError
from tritune.plan import JobKind, JobState, TrialState
from tritune.settings import Settings
from tritune.store import Job, Store, Trial
from tritune.study_plan import LoadSpace, SearchMethod, SearchSpace, StudyPlan, Switching
from tritune.trial import TrialEnded

CONFIG = """
name: "m" platform: "onnxruntime_onnx" max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: [4] } output { name: "y" data_type: TYPE_FP32 dims: [4] }
dynamic_batching { max_queue_delay_microseconds: 100 }
"""


class Bench:
    """The server and the generator: what each candidate reaches, and which go wrong."""

    def __init__(self) -> None:
        self.rps: Callable[[Trial], float] = lambda row: 1000.0
        self.refused: set[int] = set()
        self.fails: Callable[[Trial], Exception | None] = lambda row: None
        self.measured: list[tuple[int, int, str]] = []
        self.put_back = 0
        self.served: dict[str, Any] | None = None
        self.server = SimpleNamespace(
            is_live=lambda: True,
            has_model_config=True,
            model_ready=lambda _: self.served is not None,
            config=lambda _: self.served,
        )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRITUNE_RESULTS": str(tmp_path), "TRITUNE_MODEL_REPO": str(tmp_path / "models")})


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    store = Store.of(settings)
    yield store
    store.close()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, store: Store) -> Bench:
    bench = Bench()

    class Turns:
        reload_s: tuple[float, ...] = ()

        def __init__(self, *_: Any) -> None: ...

        def serve(self, candidate: int, *_: Any) -> str:
            if candidate in bench.refused:
                raise TritonRefusedError("Triton refused to load m: no.", reason="no")
            return "m"

        def lost(self) -> None: ...

        def side_by_side(self) -> None: ...

        def in_turn(self) -> None: ...

        def alone(self, _: int) -> None: ...

        def together(self, _: Any) -> None: ...

        def put_back(self) -> None:
            bench.put_back += 1

    def run(context: Any, plan: Any, *, row: Any, **_: Any) -> Mapping[str, Any]:
        made = store.trial(row.trial_id)
        assert made.cell is not None
        if (error := bench.fails(made)) is not None:
            store.finish_trial(row.trial_id, TrialState.FAILED, error=str(error))
            raise TrialEnded(JobState.FAILED, str(error), {}) from error
        bench.measured.append((made.round, made.cell.candidate, made.cell.role))
        value = bench.rps(made)
        store.finish_trial(row.trial_id, TrialState.FINISHED, measurement=measurement(value))
        return {"trial_id": row.trial_id}

    monkeypatch.setattr(study, "Turns", Turns)
    monkeypatch.setattr(study.trial, "run", run)
    monkeypatch.setattr(study.servers, "connect", lambda _: bench.server)
    return bench


def measurement(rps: float) -> dict[str, Any]:
    return {
        "throughput_ips": {"value": rps, "ci95": [rps, rps]},
        "latency_ms": {"p50": 1.0, "p99": {"value": 1e4 / rps, "ci95": None, "at_least": False}, "lower_bounds": []},
        "server": None,
        "warnings": [],
    }


@pytest.fixture
def go(settings: Settings, store: Store, bench: Bench) -> Callable[..., Job]:
    def go(**changes: Any) -> Job:
        plan = StudyPlan(
            "m",
            **{
                "space": SearchSpace(max_queue_delay_microseconds=(0, 400)),
                "loads": LoadSpace(concurrency=(2, 8)),
                "rounds": 4,
                **changes,
            },
        )
        base = model_config.parse(CONFIG)
        found = study_space.expand(plan, base, None)
        store.insert_job(
            JobKind.SWEEP,
            {
                "model": "m",
                "plan": plan.to_dict(),
                "candidates": [candidate.to_dict() for candidate in found.candidates],
                "loads": [load.to_dict() for load in found.loads],
                "baseline": 0,
                "base_config": base.text,
                "found": None,
            },
        )
        return again()

    def again() -> Job:
        job = store.claim("me")
        assert job is not None
        worker._do(worker.Context(settings, store, job, "me"), threading.Event())
        return store.job(job.id)

    go.again = again  # type: ignore[attr-defined]
    return go


def rows(store: Store, job: Job) -> list[Trial]:
    return list(reversed(store.trials(study_id=f"s{job.id}")))


def noisy(row: Trial) -> float:
    """Equal configurations, with a little noise that the trial's number draws."""
    return 1000.0 * (1 + 0.01 * ((int(row.trial_id[1:]) * 7919) % 13 - 6))


def test_all_rounds_measure_every_cell_once_in_another_order(go: Any, bench: Bench, store: Store) -> None:
    bench.rps = noisy
    job = go(stop_early=False)
    assert job.state is JobState.FINISHED, job.error
    made = rows(store, job)
    orders = []
    for number in range(1, 5):
        cells = [row.cell for row in made if row.round == number and row.cell]
        measured = [(cell.candidate, cell.load) for cell in cells if cell.role == "measure"]
        assert sorted(measured) == [(c, load) for c in range(3) for load in range(2)]
        assert (cells[-1].candidate, cells[-1].load, cells[-1].role) == (*measured[0], "drift")
        orders.append(tuple(measured))
    assert len(set(orders)) > 1
    assert bench.put_back == 1


def test_the_order_is_the_seeds(go: Any, bench: Bench, store: Store) -> None:
    first, second, other = go(rounds=1), go(rounds=1), go(rounds=1, seed=5)
    orders = [[row.cell for row in rows(store, job)] for job in (first, second, other)]
    assert orders[0] == orders[1] != orders[2]


def test_what_is_clearly_out_is_measured_no_further(go: Any, bench: Bench, store: Store) -> None:
    bench.rps = lambda row: noisy(row) * (0.3 if row.cell and row.cell.candidate == 2 else 1.0)
    job = go(rounds=6)
    last = {row.cell.candidate for row in rows(store, job) if row.round == 4 and row.cell}
    assert 2 not in last
    assert "measure" in {row.cell.role for row in rows(store, job) if row.round == 4 and row.cell}


def test_a_refused_configuration_is_left_out_and_the_rest_goes_on(go: Any, bench: Bench, store: Store) -> None:
    bench.refused = {1}
    job = go(rounds=3)
    assert job.state is JobState.FINISHED, job.error
    refused = [row for row in rows(store, job) if row.state is TrialState.FAILED]
    assert [row.cell.candidate for row in refused if row.cell] == [1]
    assert "no." in str(refused[0].error)
    assert {candidate for _, candidate, _ in bench.measured} == {0, 2}
    assert [note["code"] for note in job.notes] == ["refused"]


def test_a_generator_that_gives_up_is_tried_once_more(go: Any, bench: Bench, store: Store) -> None:
    def fails(row: Trial) -> Exception | None:
        assert row.cell is not None
        is_first = row.attempt == 1 and row.round == 2
        return LoadTestError("It gave up.") if is_first and row.cell.candidate == 1 else None

    bench.fails = fails
    job = go(rounds=3)
    assert job.state is JobState.FINISHED, job.error
    again = [row for row in rows(store, job) if row.attempt == 2]
    assert {(row.round, row.cell.candidate) for row in again if row.cell} == {(2, 1)}
    assert all(row.state is TrialState.FINISHED for row in again)


def test_a_cell_that_fails_twice_in_a_round_is_given_up_and_a_baseline_ends_the_study(
    go: Any, bench: Bench, store: Store
) -> None:
    bench.fails = lambda row: LoadTestError("Never.") if row.cell and row.cell.candidate == 2 else None
    job = go(rounds=3)
    assert job.state is JobState.FINISHED, job.error
    assert {candidate for number, candidate, _ in bench.measured if number == 3} == {0, 1}
    bench.fails = lambda row: LoadTestError("Never.") if row.cell and row.cell.candidate == 0 else None
    job = go(rounds=3)
    assert job.state is JobState.FAILED
    assert "baseline could not be measured" in str(job.error)
    assert bench.put_back == 2


def test_the_budget_ends_it_and_the_result_says_so(
    go: Any, bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study._Running, "spent_s", lambda self: 10.0 * len(self.trials))
    monkeypatch.setattr(study._Running, "trial_s", lambda self: 10.0)
    job = go(rounds=50, budget_s=200.0, stop_early=False)
    assert job.state is JobState.FINISHED
    assert job.result is not None
    assert "budget of 3 min was spent" in job.result["stopped"]
    assert TrialState.WAITING not in {row.state for row in rows(store, job)}


def test_a_server_that_somebody_else_runs_interrupts_the_study_which_then_goes_on(
    go: Any, bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = SimpleNamespace(kind=study.ServerKind.REMOTE, state=study.ServerState.FAILED)
    monkeypatch.setattr(study.servers, "settled", lambda _: remote)
    bench.fails = lambda row: ServerDownError("It is gone.") if row.round == 2 and row.attempt == 1 else None
    job = go(rounds=3)
    assert job.state is JobState.INTERRUPTED
    assert "tritune study resume" in str(job.error)
    kept = [row for row in rows(store, job) if row.state is TrialState.FINISHED]
    waiting = [row.trial_id for row in rows(store, job) if row.state is TrialState.WAITING]
    assert waiting
    bench.fails = lambda row: None
    assert store.requeue_job(job.id)
    job = go.again()
    assert job.state is JobState.FINISHED, job.error
    after = {row.trial_id: row for row in rows(store, job)}
    assert all(after[row.trial_id] == row for row in kept)
    assert all(after[trial_id].state is TrialState.FINISHED for trial_id in waiting)


def test_optuna_measures_the_baseline_and_some_others_each_round(go: Any, bench: Bench, store: Store) -> None:
    bench.rps = noisy
    delays = tuple(range(200, 1400, 100))
    job = go(rounds=3, search=SearchMethod.OPTUNA, space=SearchSpace(max_queue_delay_microseconds=delays))
    assert job.state is JobState.FINISHED, job.error
    for number in range(1, 4):
        chosen = {row.cell.candidate for row in rows(store, job) if row.round == number and row.cell}
        assert 0 in chosen
        assert 1 < len(chosen) < len(delays)


def test_a_disk_that_is_nearly_full_interrupts_the_study_and_no_configuration_is_left_out_for_it(
    go: Any, bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        if len(bench.measured) == 3:
            raise InputError("The disk has 1 MB free.")

    monkeypatch.setattr(study.trial, "check_disk", full)
    job = go(rounds=2)
    assert job.state is JobState.INTERRUPTED
    assert "The disk has 1 MB free. `tritune study resume" in str(job.error)
    assert {row.state for row in rows(store, job)} == {TrialState.FINISHED, TrialState.WAITING}
    monkeypatch.setattr(study.trial, "check_disk", lambda *_: None)
    assert store.requeue_job(job.id)
    job = go.again()
    assert job.state is JobState.FINISHED, job.error
    assert {candidate for number, candidate, _ in bench.measured if number == 2} == {0, 1, 2}


def test_a_study_that_failed_at_its_baseline_measures_it_again_when_it_is_resumed(
    go: Any, bench: Bench, store: Store
) -> None:
    bench.fails = lambda row: LoadTestError("Never.") if row.cell and row.cell.candidate == 0 else None
    job = go(rounds=3)
    assert job.state is JobState.FAILED
    bench.fails = lambda row: None
    assert store.requeue_job(job.id)
    job = go.again()
    assert job.state is JobState.FINISHED, job.error
    for number in range(1, 4):
        cells = {(row.cell.candidate, row.cell.load) for row in rows(store, job) if row.cell and row.round == number}
        done = {
            (row.cell.candidate, row.cell.load)
            for row in rows(store, job)
            if row.cell and row.round == number and row.state is TrialState.FINISHED
        }
        assert done == cells == {(candidate, load) for candidate in range(3) for load in range(2)}


def test_a_server_that_was_stopped_on_purpose_is_not_started_by_the_study(
    go: Any, bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = SimpleNamespace(kind=None, state=study.ServerState.STOPPED)
    monkeypatch.setattr(study.servers, "settled", lambda _: stopped)
    monkeypatch.setattr(study.servers, "restart", lambda *_, **__: pytest.fail("it was stopped on purpose"))
    bench.fails = lambda row: ServerDownError("It is gone.") if row.round == 2 else None
    job = go(rounds=3)
    assert job.state is JobState.INTERRUPTED
    assert "was stopped during the study" in str(job.error)


def test_a_server_that_cannot_be_started_anew_interrupts_the_study(
    go: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = SimpleNamespace(kind=study.ServerKind.EMBEDDED, state=study.ServerState.FAILED)
    monkeypatch.setattr(study.servers, "settled", lambda _: dead)

    def refuse(*_: Any, **__: Any) -> None:
        raise ServerError("Triton did not start: no.")

    monkeypatch.setattr(study.servers, "restart", refuse)
    bench.fails = lambda row: ServerDownError("It is gone.") if row.round == 2 else None
    job = go(rounds=3)
    assert job.state is JobState.INTERRUPTED
    assert "Triton did not start: no." in str(job.error)
    assert "tritune study resume" in str(job.error)


def test_what_a_tune_in_line_before_it_changed_is_the_baseline(
    go: Any, bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.served = {"name": "m", "max_batch_size": 8}
    asked: list[Mapping[str, Any]] = []

    def prepare(settings: Settings, plan: StudyPlan, *, note: str) -> tuple[dict[str, Any], list[str]]:
        payload = dict(store.jobs()[0].payload)
        asked.append(payload)
        return {**payload, "found": bench.served, "base_config": CONFIG.replace("16", "8")}, []

    monkeypatch.setattr(study.study_ask, "prepare", prepare)
    job = go(rounds=1)
    assert job.state is JobState.FINISHED, job.error
    assert len(asked) == 1
    assert job.payload["found"] == bench.served
    assert [note["code"] for note in job.notes] == ["found_anew"]


def test_a_study_that_is_resumed_puts_back_what_it_finds_then(go: Any, bench: Bench, store: Store) -> None:
    job = go(rounds=1)
    bench.served = {"name": "m", "max_batch_size": 8}
    assert store.requeue_job(job.id)
    again = go.again()
    assert again.payload == {**job.payload, "found": bench.served}
    store.note_job(job.id, study.study_ask.NOT_PUT_BACK, "It could not be served again.")
    bench.served = {"name": "m", "max_batch_size": 4}
    assert store.requeue_job(job.id)
    assert go.again().payload == again.payload  # what is served now is the study's own


def test_the_largest_seed_is_one(go: Any, bench: Bench) -> None:
    assert go(rounds=2, seed=2**63 - 1).state is JobState.FINISHED


def test_a_trial_of_the_aa_that_went_wrong_is_made_again(
    go: Any, bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study.variants, "possible", lambda *_: None)
    bench.fails = lambda row: LoadTestError("Once.") if row.trial_id == "t3" else None
    job = go(rounds=1, switching=Switching.SIDE_BY_SIDE)
    assert job.state is JobState.FINISHED, job.error
    assert [note["good"] for note in job.notes] == [True]
    roles = [role for number, _, role in bench.measured if number == 0]
    assert sorted(roles) == ["alone"] * 4 + ["together"] * 4
