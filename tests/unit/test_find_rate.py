"""The search from the command line: its document, exit codes and refusals; goodput and exit code 3 of one test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tritune import cli, find_rate, jobs, rate_report, trial
from tritune.errors import LoadTestError
from tritune.load_plan import LoadPlan
from tritune.p99_limit import OPENING_CLIENTS
from tritune.plan import JobKind, JobState, TrialState
from tritune.search import RateGoal
from tritune.settings import Settings
from tritune.store import Store

CAPACITY_RPS = 2000.0


def measurement(plan: LoadPlan, *, generator_rps: float = 1e9, idle_ms: float = 2.0) -> dict[str, Any]:
    """What a server with one queue of CAPACITY_RPS gives, without noise."""
    rate = plan.rate_rps or CAPACITY_RPS
    full = rate >= CAPACITY_RPS
    p99 = 500.0 if full else idle_ms + 4605 / (CAPACITY_RPS - rate)
    count = int(rate * plan.duration_s)
    warnings = [{"code": "generator_saturated", "message": "It was full."}] if rate > generator_rps else []
    p99 *= 100 if warnings else 1
    return {
        "throughput_ips": {"value": min(rate, CAPACITY_RPS), "ci95": [rate * 0.99, rate * 1.01]},
        "latency_ms": {
            "p50": 1.0,
            "p95": 2.0,
            "p99": {"value": p99, "ci95": [p99 * 0.99, p99 * 1.01], "at_least": False},
        },
        "requests": {"ok": count, "failed": 0, "warmup": 9, "drain": 0, "unsent": 0, "timeout": 0, "rejected": 0},
        "server": None,
        "warnings": warnings,
        "goodput_rps": None if plan.p99_limit_ms is None else rate / 2,
        "window_s": plan.duration_s,
    }


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TRITUNE_RESULTS", str(tmp_path / "the results"))
    monkeypatch.setenv("TRITUNE_MODEL_REPO", str(tmp_path / "models"))
    monkeypatch.delenv("TRITUNE_DATABASE_URL", raising=False)
    return Settings.from_env()


@pytest.fixture
def server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Trials without a server, and jobs that are done at once; the options of `measurement` can be changed."""
    options: dict[str, Any] = {}

    def run(context: Any, plan: LoadPlan, *, labels: Any, note: str, round: int = 1, attempt: int = 1) -> Any:
        trial_id = context.store.start_trial(
            context.job.id, plan, configuration=None, labels=labels, note=note, round=round, attempt=attempt
        )
        if len(context.store.trials()) > options.get("ends_after", 1000):
            context.store.finish_trial(trial_id, TrialState.FAILED, error="The server ended.")
            raise trial.TrialEnded(JobState.FAILED, "The server ended.", {"trial_id": trial_id})
        if len(context.store.trials()) == options.get("generator_fails_at"):
            context.store.finish_trial(trial_id, TrialState.FAILED, error="The generator was killed.")
            cause = LoadTestError("The generator was killed.")
            raise trial.TrialEnded(JobState.FAILED, str(cause), {"trial_id": trial_id}) from cause
        known = {name: value for name, value in options.items() if name in ("idle_ms", "generator_rps")}
        context.progress("Measuring", 0.5, live={"p99_ms": 1.0})
        context.store.finish_trial(trial_id, TrialState.FINISHED, measurement=measurement(plan, **known))
        return {"trial_id": trial_id}

    def run_and_wait(settings: Settings, store: Store, kind: JobKind, payload: Any, say: Any) -> Any:
        import threading

        from tritune import worker

        job_id = store.insert_job(kind, payload)
        job = store.claim("me")
        assert job is not None
        worker._do(worker.Context(settings, store, job, "me"), threading.Event())
        return store.job(job_id)

    monkeypatch.setattr(trial, "run", run)
    monkeypatch.setattr(jobs, "check_load", lambda settings, plan: None)
    monkeypatch.setattr(jobs, "run_and_wait", run_and_wait)
    return options


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


FIND = ("load", "mnist", "--find-rate", "--p99-ms", "20")


def test_the_document_has_the_rate_its_probes_and_the_reason(server: dict[str, Any]) -> None:
    result = run(*FIND, "--label", "a=b", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["study_id"], found["state"], found["outcome"]) == ("s1", "finished", "found")
    rate = found["rate_rps"]
    truth = CAPACITY_RPS - 4605 / 18
    assert rate["value"] == rate["low"] <= truth <= rate["high"] <= 1.05 * rate["low"]
    assert found["p99_ms"]["value"] < found["limit_ms"] == 20.0
    assert found["p99_ms"]["ci95"]
    assert found["goodput_rps"] == pytest.approx(rate["value"] / 2)
    assert found["closed_loop_rps"] == CAPACITY_RPS
    assert found["warnings"] == []
    assert "Up to" in found["reason"]
    first, second, *_, last = found["probes"]
    assert (first["judgement"], first["rate_rps"], first["concurrency"]) == ("opening", None, OPENING_CLIENTS)
    assert (second["judgement"], second["rate_rps"], second["round"], second["attempt"]) == ("held", 1400.0, 2, 1)
    assert (last["judgement"], last["rate_rps"], last["attempt"]) == ("missed", rate["high"], 2)
    shown = json.loads(run("study", "show", "s1", "--json").stdout)
    assert shown["rate_rps"] == rate
    assert len(shown["trials"]) == len(found["probes"])
    assert all(made["labels"] == {"a": "b"} for made in shown["trials"])
    (row,) = json.loads(run("study", "list", "--json").stdout)["studies"]
    assert (row["rate_rps"], row["limit_ms"]) == (rate, 20.0)
    assert "requests/s hold a P99 under 20 ms" in run("study", "list").stdout
    assert "1,400/s" in run("study", "show", "s1").stdout


def test_not_even_the_lowest_rate_is_exit_code_3(server: dict[str, Any]) -> None:
    server["idle_ms"] = 30.0
    result = run(*FIND, "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert (found["state"], found["outcome"], found["rate_rps"]["value"]) == ("finished", "limit_missed", None)
    assert "Even the lowest rate" in found["reason"]


def test_a_full_generator_is_said_to_be_the_limit(server: dict[str, Any]) -> None:
    server["generator_rps"] = 1000.0
    result = run(*FIND, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["outcome"] == "generator_limited"
    assert found["rate_rps"]["high"] is None
    assert found["rate_rps"]["value"] <= 1000.0
    assert [warning["code"] for warning in found["warnings"]] == ["generator_saturated"]
    assert "It was full." in found["reason"]


def test_a_server_that_ends_fails_the_search_and_keeps_the_probes(server: dict[str, Any]) -> None:
    server["ends_after"] = 3
    result = run(*FIND, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["state"], found["error"]) == ("failed", "The server ended.")
    assert len(found["probes"]) == 3
    assert "finished probes are kept" in found["reason"]
    assert "The server ended." in result.stderr


def test_a_probe_whose_generator_failed_is_made_again(server: dict[str, Any]) -> None:
    server["generator_fails_at"] = 3
    assert run(*FIND).exit_code == 0
    made = json.loads(run("study", "show", "s1", "--json").stdout)["trials"][::-1]
    failed, again = made[2], made[3]
    assert (failed["state"], again["state"]) == ("failed", "finished")
    assert failed["load"] == again["load"]
    assert again["attempt"] == failed["attempt"] + 1


def test_a_search_goes_on_from_the_stored_probes(server: dict[str, Any], settings: Settings) -> None:
    server["ends_after"] = 3
    assert run(*FIND).exit_code == 1
    del server["ends_after"]
    store = Store(settings.database_url)
    job = store.job(1)
    plan, goal = LoadPlan.from_dict(job.payload["plan"]), RateGoal.from_dict(job.payload["goal"])

    class Context:
        ended = None
        progress = staticmethod(lambda text, fraction=None, **extra: None)

    context: Any = Context()
    context.settings, context.store, context.job = settings, store, job
    found = find_rate.run(context, plan, goal, labels={}, note="")
    store.close()
    assert found["outcome"] == "found"
    assert [probe["rate_rps"] for probe in found["probes"]].count(None) == 1  # it did not begin again


def test_a_closed_loop_without_an_answer_ends_the_search_with_the_reason(
    server: dict[str, Any], settings: Settings
) -> None:
    plan = LoadPlan("mnist", concurrency=1)
    found = measurement(plan) | {"throughput_ips": {"value": 0.0, "ci95": None}}
    found["warnings"] = [{"code": "errors", "message": "All failed: no such model."}]
    store = Store(settings.database_url)
    job_id = store.insert_job(JobKind.FIND_RATE, {})
    trial_id = store.start_trial(job_id, plan, configuration=None, labels={}, note="")
    store.finish_trial(trial_id, TrialState.FINISHED, measurement=found)
    with pytest.raises(LoadTestError, match="All failed: no such model"):
        find_rate._require_answers(store.trial(trial_id))
    store.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--find-rate",), ["--p99-ms"]),
        (("--find-rate", "--p99-ms", "20", "--rate", "5"), ["chooses the load itself"]),
        (("--find-rate", "--p99-ms", "20", "--concurrency", "5"), ["chooses the load itself"]),
        (("--find-rate", "--p99-ms", "20000"), ["timeout"]),
        (("--find-rate", "--p99-ms", "20", "--driver", "perf_analyzer"), ["locust driver"]),
        (("--find-rate", "--p99-ms", "20", "--precision", "0"), ["precision=0"]),
        (("--find-rate", "--p99-ms", "20", "--budget-min", "0"), ["budget=0"]),
        (("--concurrency", "1", "--p99-ms", "0"), ["p99_ms=0"]),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(
    server: dict[str, Any], arguments: tuple[str, ...], words: list[str]
) -> None:
    result = run("load", "mnist", *arguments)
    assert result.exit_code == 2, result.output
    for word in words:
        assert word in result.stderr


def test_one_load_test_has_goodput_and_exit_code_3_where_its_limit_is_missed(server: dict[str, Any]) -> None:
    one = ("load", "mnist", "--rate", "1500")
    without = run(*one)
    assert without.exit_code == 0
    assert "goodput" not in without.stdout
    held = run(*one, "--p99-ms", "20")
    assert held.exit_code == 0
    assert "goodput 750 requests/s within 20 ms: the limit holds" in held.stdout
    missed = run(*one, "--p99-ms", "5", "--json")
    assert missed.exit_code == 3
    document = json.loads(missed.stdout)
    assert (document["goodput_rps"], document["plan"]["p99_limit_ms"]) == (750.0, 5.0)
    assert run(*one, "--p99-ms", "11.2").exit_code == 0  # its interval lies on both sides


def test_the_words_of_a_search_with_and_without_a_result() -> None:
    found = {"rate_rps": {"value": 100.0, "high": None}, "limit_ms": 20.0}
    assert rate_report.headline(found) == "At least 100 requests/s hold a P99 under 20 ms."
    nothing = {"rate_rps": {"value": None, "high": 5.0}, "limit_ms": 20.0}
    assert rate_report.headline(nothing) == "No rate was shown to hold a P99 under 20 ms."
