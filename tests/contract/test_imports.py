"""A study goes out as JSON and comes in again with the same verdicts; nothing is half imported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tritune import compared, exports, imports, study_result
from tritune.errors import InputError, StoreError
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, JobKind, JobState, TrialState
from tritune.settings import Settings
from tritune.store import Cell, Store
from tritune.study_plan import LoadSpace, StudyPlan

DELAYS = (100, 0, 4000)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TRITUNE_RESULTS", str(tmp_path / "results"))
    return Settings.from_env()


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    store = Store.of(settings)
    yield store
    store.close()


def measured(store: Store, *, last: TrialState = TrialState.FINISHED) -> int:
    """A study of three delays in four rounds, whose last trial ended as `last`."""
    load = LoadPlan("mnist", concurrency=2)
    plan = StudyPlan("mnist", loads=LoadSpace(concurrency=(2,)), rounds=4)
    configurations = [Configuration(16, True, (), delay, 1) for delay in DELAYS]
    payload = {
        "model": "mnist",
        "plan": plan.to_dict(),
        "candidates": [
            {"number": number, "label": f"delay {DELAYS[number]} µs", "configuration": each.to_dict(), "change": {}}
            for number, each in enumerate(configurations)
        ],
        "loads": [load.to_dict()],
        "left_out": [],
        "baseline": 0,
    }
    job = store.insert_job(JobKind.SWEEP, payload)
    store.claim("w")
    store.note_job(job, "reload", "Configurations were reloaded in turn.")
    chance = np.random.default_rng(3)
    for round in range(1, 5):
        store.insert_trials(job, [(load, configurations[n], Cell(n, 0), round, 1) for n in range(3)])
        for trial in reversed(store.trials(study_id=f"s{job}", state=TrialState.WAITING)):
            assert trial.cell
            ips = (1000.0, 1010.0, 210.0)[trial.cell.candidate] * chance.lognormal(0, 0.02)
            measurement = {
                "throughput_ips": {"value": ips, "ci95": [0.9 * ips, 1.1 * ips]},
                "latency_ms": {"p50": 1.0, "p99": {"value": 2000 / ips, "ci95": None}},
                "warnings": [],
            }
            store.claim_trial(trial.trial_id)
            state = last if (round, trial.cell.candidate) == (4, 2) else TrialState.FINISHED
            if state is not TrialState.FINISHED:
                store.finish_trial(trial.trial_id, state, error="The server ended.")
                continue
            store.finish_trial(trial.trial_id, state, measurement=measurement, provenance={"triton_version": "2.51.0"})
    store.finish_job(job, "w", JobState.FINISHED, result={"stopped": "All planned rounds are done."})
    return job


def exported(store: Store, job: int, to: Path) -> dict[str, object]:
    trials = store.trials(study_id=f"s{job}", limit=1000)
    document = study_result.document(store.job(job), trials)
    exports.export(store.job(job), document, to)
    return document


def imported(store: Store, study_id: str) -> dict[str, object]:
    return study_result.document(store.job(int(study_id[1:])), store.trials(study_id=study_id, limit=1000))


SAME = (
    "candidates",
    "loads",
    "rounds",
    "baseline",
    "comparisons",
    "best",
    "reason",
    "stopped",
    "plan",
    "drift",
    "model",
)


@pytest.mark.parametrize("last", [TrialState.FINISHED, TrialState.FAILED])
def test_an_exported_study_comes_in_with_the_same_verdicts(
    settings: Settings, store: Store, tmp_path: Path, last: TrialState
) -> None:
    before = exported(store, measured(store, last=last), tmp_path / "study.json")
    after = imported(store, imports.import_file(settings, store, tmp_path / "study.json"))
    assert {name: after[name] for name in SAME} == {name: before[name] for name in SAME}
    assert after["imported"] is True
    assert [note["message"] for note in after["notes"]] == ["Configurations were reloaded in turn."]  # type: ignore[attr-defined]
    assert any(row["verdict"] == "worse" for row in after["comparisons"])  # type: ignore[attr-defined]


def test_what_is_exported_once_more_still_says_where_it_first_came_from(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    exported(store, measured(store), tmp_path / "a.json")
    second = imports.import_file(settings, store, tmp_path / "a.json")
    exported(store, int(second[1:]), tmp_path / "b.json")
    third = imports.import_file(settings, store, tmp_path / "b.json")
    (trial, *_) = store.trials(study_id=third)
    assert trial.provenance["imported_from"]["file"] == "a.json"
    assert [warning["code"] for warning in (trial.measurement or {})["warnings"]] == ["imported"]


def test_a_changed_export_leaves_nothing_behind(settings: Settings, store: Store, tmp_path: Path) -> None:
    exported(store, measured(store), tmp_path / "study.json")
    whole = json.loads((tmp_path / "study.json").read_text())
    before = len(store.jobs())
    for change in ({"throughput_ips": {"value": "much"}}, {"plan": {}}, {"cell": {"candidate": 99, "load": 77}}):
        whole["study"]["trials"][5] |= change
        (tmp_path / "changed.json").write_text(json.dumps(whole))
        with pytest.raises(InputError):
            imports.import_file(settings, store, tmp_path / "changed.json")
    assert len(store.jobs()) == before


def test_an_import_is_stored_whole_or_not_at_all(store: Store, settings: Settings, tmp_path: Path) -> None:
    exported(store, measured(store), tmp_path / "study.json")
    study = imports.read(tmp_path / "study.json")
    broken = [*study.trials, None]
    with pytest.raises((StoreError, AttributeError)):
        store.insert_import(study.payload, broken, created_at=0.0)  # type: ignore[arg-type]
    assert [job.kind for job in store.jobs()] == [JobKind.SWEEP]


def test_a_study_and_an_import_are_compared_without_a_verdict(settings: Settings, store: Store, tmp_path: Path) -> None:
    job = measured(store)
    exported(store, job, tmp_path / "study.json")
    other = imports.import_file(settings, store, tmp_path / "study.json")
    asked, document = compared.compared(store, [f"s{job}", other])
    assert len(document["candidates"]) == 6
    assert {row["verdict"] for row in document["comparisons"]} == {"not measured"}
    exports.export(asked, document, tmp_path / "both.html")
    assert "delay 4000 µs" in (tmp_path / "both.html").read_text()


def test_another_trial_of_a_study_can_be_its_baseline(store: Store) -> None:
    job = measured(store)
    trial = next(trial for trial in store.trials(study_id=f"s{job}") if trial.cell and trial.cell.candidate == 2)
    _, document = compared.compared(store, [f"s{job}"], trial.trial_id)
    assert document["baseline"]["candidate"] == 2
    assert {row["verdict"] for row in document["comparisons"]} == {"better"}
    with pytest.raises(InputError, match="no trial of"):
        compared.compared(store, [f"s{job}"], "t999")
