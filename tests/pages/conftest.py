"""An installation in a temporary folder, with or without load tests in it, for the pages to read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.outcome import Outcome
from loadgen.samples import Samples, write_parquet
from tritune import measurement, rate_report, search, study_space
from tritune.load_plan import Arrivals, LoadPlan
from tritune.plan import Configuration, Endpoints, JobKind, JobState, TrialState, TuneChange
from tritune.settings import ROOT, Settings
from tritune.store import Cell, Store
from tritune.study_plan import LoadSpace, StudyPlan
from tritune.triton import StatisticsDifference

SECOND = 1_000_000_000
PLAIN = Configuration(32, True, (), 0, 2)
PREFERRED = Configuration(16, True, (4, 8), 700, 2)
UNBATCHED = Configuration(32, False, (), 0, 1)


def measured(
    plan: LoadPlan, served: Configuration, rate: float, median_ms: float, batch: float, seed: int
) -> tuple[Any, Any]:
    """A measurement by the real formulas over made-up requests: `rate` a second, log-normal latencies."""
    random = np.random.default_rng(seed)
    window = int(plan.duration_s * SECOND)
    count = int(rate * plan.duration_s)
    intended = np.sort(random.integers(0, window, count)).astype(np.int64)
    latency = (random.lognormal(np.log(median_ms), 0.35, count) * 1e6).astype(np.int64)
    samples = Samples(intended, intended, intended + latency, np.zeros(count, np.int8), np.zeros(count, np.int16))
    executions = int(count / batch)
    sizes = (
        {1: executions // 4, 2: executions // 4, 4: executions // 4, 8: executions // 4} if batch > 1.2 else {1: count}
    )
    server = StatisticsDifference(
        count, executions, count, 0, batch, sizes, median_ms * 350, 15.0, median_ms * 500, 12.0, plan.duration_s
    )
    found = measurement.measure(
        plan,
        samples,
        Outcome(0, window, 0),
        server,
        generator_cpu_ns=int(count * 90_000),
        generator_processes=1,
        asked=served,
        served=served,
        server_restarted=False,
        latency_limit_ms=plan.p99_limit_ms,
    )
    return found.to_dict(), samples


def _figures() -> dict[str, Any]:
    """A measurement by the real formulas, for its shape; a study's trials are variations of it."""
    return dict(measured(LoadPlan("mnist", concurrency=8), PLAIN, 1200, 6.0, 3.1, 0)[0])


FIGURES = _figures()
STUDIED = (
    Configuration(32, False, (), 0, 2),
    *(Configuration(32, True, sizes, delay, 2) for sizes in ((), (4, 8), (16,)) for delay in (0, 100, 1000)),
    Configuration(8, True, (), 0, 2),
    Configuration(16, True, (4,), 0, 2),
)


def _served(of: Configuration) -> dict[str, Any]:
    """What GET /v2/models/mnist/config would say of a configuration."""
    batching = {
        "preferred_batch_size": list(of.preferred_batch_size),
        "max_queue_delay_microseconds": str(of.max_queue_delay_microseconds),
    }
    return {
        "name": "mnist",
        "platform": "onnxruntime_onnx",
        "max_batch_size": of.max_batch_size,
        "instance_group": [{"count": of.instance_count, "kind": "KIND_CPU"}],
        **({"dynamic_batching": batching} if of.dynamic_batching else {}),
    }


@dataclass
class Installation:
    """Settings and store of one installation, and ways to fill it."""

    settings: Settings
    store: Store

    def trial(
        self,
        served: Configuration = PLAIN,
        *,
        rate: float = 1200.0,
        median_ms: float = 6.0,
        batch: float = 3.1,
        seed: int = 0,
        labels: dict[str, str] | None = None,
        note: str = "",
        **plan: Any,
    ) -> str:
        """A finished load test with its samples; returns its id."""
        asked = LoadPlan("mnist", **({"concurrency": 8, "duration_s": 10.0} | plan))
        job = self.store.insert_job(JobKind.LOAD_TEST, {"plan": asked.to_dict(), "labels": labels or {}, "note": note})
        claimed = self.store.claim("test")
        assert claimed is not None
        trial_id = self.store.start_trial(job, asked, configuration=served, labels=labels or {}, note=note)
        document, samples = measured(asked, served, rate, median_ms, batch, seed)
        folder = self.settings.trials / trial_id
        folder.mkdir(parents=True)
        write_parquet(samples, folder / "samples.parquet")
        machine = {"cpu": "A processor", "cores": 2}
        self.store.finish_trial(
            trial_id,
            TrialState.FINISHED,
            measurement=document,
            provenance={"triton_version": "2.51.0", "machine": machine},
        )
        self.store.finish_job(job, "test", JobState.FINISHED, result={"trial_id": trial_id})
        return trial_id

    def search(self, *, limit_ms: float = 20.0, state: JobState | None = JobState.FINISHED) -> int:
        """A search for the highest rate with six probes; `state` None: it still runs."""
        first = LoadPlan("mnist", concurrency=64, p99_limit_ms=limit_ms)
        goal = search.RateGoal.of(first)
        payload = {"plan": first.to_dict(), "goal": goal.to_dict(), "labels": {}, "note": ""}
        job = self.store.insert_job(JobKind.FIND_RATE, payload)
        self.store.claim("test")
        rates = ((None, 1600.0, 20.0), (1120.0, 1120.0, 30.0), (560.0, 560.0, 2.0), (792.0, 792.0, 3.0))
        for number, (rate, answers, median_ms) in enumerate((*rates, (942.0, 942.0, 8.85), (900.0, 900.0, 5.0))):
            plan = first if rate is None else replace(first, concurrency=None, rate_rps=rate)
            trial_id = self.store.start_trial(job, plan, configuration=PLAIN, labels={}, note="", round=number + 1)
            document, _ = measured(plan, PLAIN, answers, median_ms, 3.0, number)
            self.store.finish_trial(trial_id, TrialState.FINISHED, measurement=document, provenance={})
        probe = {"throughput_rps": 1234.0, "p99_ms": 9.87}
        self.store.heartbeat(job, "test", {"text": "Probe 7, 921/s: measuring", "fraction": 0.7, "probe": probe})
        if state is not None:
            trials = self.store.trials(study_id=f"s{job}")
            verdict = search.Verdict(search.Outcome.FOUND, 900.0, 1120.0, "Up to 900/s the P99 stays under 20 ms.")
            found = rate_report.result(goal, trials, verdict if state is JobState.FINISHED else None)
            self.store.finish_job(job, "test", state, result=found)
        return job

    def study(
        self,
        *,
        rounds: int = 4,
        done: int | None = None,
        state: JobState | None = JobState.FINISHED,
        configurations: Sequence[Configuration] = STUDIED,
        samples: bool = False,
        failures: bool = False,
        **plan: Any,
    ) -> int:
        """A study of the configurations under 1, 8 and 32 clients; `done` rounds are measured (None: all), `state`
        None: it still runs, in the round after them. `failures`: every seventh trial failed."""
        asked = StudyPlan("mnist", loads=LoadSpace(concurrency=(1, 8, 32)), rounds=rounds, **plan)
        loads = [LoadPlan("mnist", concurrency=clients) for clients in asked.loads.concurrency]
        names = study_space.labels(configurations)
        payload = {
            "model": "mnist",
            "plan": asked.to_dict(),
            "candidates": [
                {"number": n, "change": {}, "configuration": each.to_dict(), "label": names[n]}
                for n, each in enumerate(configurations)
            ],
            "loads": [load.to_dict() for load in loads],
            "left_out": [],
            "baseline": 0,
            "labels": {},
            "note": "",
        }
        job = self.store.insert_job(JobKind.SWEEP, payload)
        self.store.claim("test")
        cells = [Cell(n, load) for load in range(len(loads)) for n in range(len(configurations))]
        measured_rounds = rounds if done is None else done
        random = np.random.default_rng(7)
        for round in range(1, measured_rounds + 1 + (state is None)):
            order = [*cells, replace(cells[0], role="drift")]
            self.store.insert_trials(
                job, [(loads[cell.load], configurations[cell.candidate], cell, round, 1) for cell in order]
            )
            waiting = reversed(self.store.trials(study_id=f"s{job}", state=TrialState.WAITING))
            for number, trial in enumerate(waiting):
                assert self.store.claim_trial(trial.trial_id)
                if round > measured_rounds:
                    break
                if failures and number % 7 == 3:
                    self.store.finish_trial(trial.trial_id, TrialState.FAILED, error="The server ended in this trial.")
                    continue
                self._finish(trial, random, samples=samples)
        text = f"Round {measured_rounds + 1} of {rounds}"
        self.store.heartbeat(job, "test", {"text": text, "fraction": 0.4})
        if state is not None:
            self.store.finish_job(job, "test", state, result={"stopped": "All planned rounds are done."})
        return job

    def _finish(self, trial: Any, random: np.random.Generator, *, samples: bool) -> None:
        """A trial of a study with made-up figures: batching pays with many clients, a delay costs a lone one."""
        served, clients = trial.configuration, trial.plan.concurrency
        batch = min(served.max_batch_size, max(1.0, clients / 3)) if served.dynamic_batching else 1.0
        wait_ms = served.max_queue_delay_microseconds / 1e3 if served.dynamic_batching else 0.0
        ips = 900 * clients**0.35 * batch**0.18 / (1 + 0.05 * wait_ms * (clients < 32)) * random.lognormal(0, 0.02)
        mean_ms = 1e3 * clients / ips
        p99_ms = 1.6 * mean_ms * random.lognormal(0, 0.04)
        document = dict(FIGURES) | {
            "throughput_ips": {"value": ips, "ci95": [0.98 * ips, 1.02 * ips]},
            "latency_ms": dict(FIGURES["latency_ms"])
            | {"mean": mean_ms, "p50": 0.9 * mean_ms, "p99": {"value": p99_ms, "ci95": [0.93 * p99_ms, 1.07 * p99_ms]}},
            "server": {
                "average_batch": batch,
                "batch_sizes": {"1": 300, str(max(2, int(batch))): 700} if batch > 1 else {"1": 1000},
                "queue_us": 300 * mean_ms,
                "compute_input_us": 20.0,
                "compute_infer_us": 400 * mean_ms,
                "compute_output_us": 15.0,
            },
            "requests": dict(FIGURES["requests"]) | {"ok": int(10 * ips)},
        }
        if served.dynamic_batching and clients == 1:
            said = "Dynamic batching is on but batches averaged 1: 1 client in flight meets 2 instances."
            document["warnings"] = [{"code": "never_batched", "message": said}]
        if samples:
            folder = self.settings.trials / trial.trial_id
            folder.mkdir(parents=True)
            _, made = measured(trial.plan, served, ips, 0.9 * mean_ms, batch, int(trial.trial_id[1:]))
            write_parquet(made, folder / "samples.parquet")
        self.store.finish_trial(
            trial.trial_id,
            TrialState.FINISHED,
            measurement=document,
            provenance={
                "triton_version": "2.51.0",
                "machine": {"cpu": "A processor", "cores": 2},
                "served_config": _served(served),
            },
        )

    def failed_trial(self, reason: str) -> str:
        """A load test that failed."""
        asked = LoadPlan("mnist", concurrency=8)
        job = self.store.insert_job(JobKind.LOAD_TEST, {"plan": asked.to_dict(), "labels": {}, "note": ""})
        self.store.claim("test")
        trial_id = self.store.start_trial(job, asked, configuration=PLAIN, labels={}, note="")
        self.store.finish_trial(trial_id, TrialState.FAILED, error=reason)
        self.store.finish_job(job, "test", JobState.FAILED, result={"trial_id": trial_id}, error=reason)
        return trial_id

    def tune(self, stall_ms: float = 1530.0) -> int:
        """A finished tune."""
        change = TuneChange(preferred_batch_size=(4, 8), max_queue_delay_microseconds=700, max_batch_size=16)
        job = self.store.insert_job(JobKind.TUNE, {"model": "mnist", "change": change.to_dict(), "undo": False})
        self.store.claim("test")
        result = {
            "model": "mnist",
            "before": "max_batch_size: 32\n",
            "after": "max_batch_size: 16\n",
            "diff": "-max_batch_size: 32\n+max_batch_size: 16\n",
            "reload_ms": 1480.0,
            "stall_ms": stall_ms,
            "stall_reason": None,
            "served": PREFERRED.to_dict(),
            "verified": True,
            "differences": [],
        }
        self.store.finish_job(job, "test", JobState.FINISHED, result=result)
        return job

    def ended(self, kind: JobKind, *, error: str | None = None, result: dict[str, Any] | None = None) -> int:
        """A job of any kind that has ended: failed with `error`, or finished."""
        job = self.store.insert_job(kind, {"model": "mnist"})
        self.store.claim("test")
        self.store.finish_job(job, "test", JobState.FAILED if error else JobState.FINISHED, result=result, error=error)
        return job

    def running(self, kind: JobKind = JobKind.LOAD_TEST) -> int:
        """A job that a worker is at; a load test has a second of live figures."""
        asked = LoadPlan("mnist", concurrency=8)
        payload = (
            {"plan": asked.to_dict(), "labels": {}, "note": ""} if kind is JobKind.LOAD_TEST else {"model": "mnist"}
        )
        job = self.store.insert_job(kind, payload)
        self.store.claim("test")
        live = {"phase": "measuring", "elapsed_s": 5.0, "total_s": 12.0, "throughput_rps": 1234.0, "p99_ms": 9.87}
        live |= {"ok": 6000, "failed": 0, "window_start_ns": 0, "window_end_ns": SECOND}
        progress: dict[str, Any] = {"text": "Measuring", "fraction": 5 / 12, "trial_id": "t1", "live": live}
        if kind is not JobKind.LOAD_TEST:
            progress = {"text": "Working on it", "fraction": None}
        self.store.heartbeat(job, "test", progress)
        return job

    def several(self) -> list[str]:
        """Three configurations measured with one load, one of them twice, and an open loop."""
        return [
            self.trial(PLAIN, rate=1210, median_ms=6.1, seed=1, labels={"machine": "laptop"}),
            self.trial(PREFERRED, rate=1390, median_ms=5.3, batch=4.4, seed=2, note="the tutorial's sizes"),
            self.trial(UNBATCHED, rate=820, median_ms=9.4, batch=1.0, seed=3),
            self.trial(
                PREFERRED,
                rate=100,
                median_ms=2.1,
                batch=1.1,
                seed=4,
                concurrency=None,
                rate_rps=100.0,
                arrivals=Arrivals.POISSON,
            ),
            self.trial(PREFERRED, rate=1405, median_ms=5.2, batch=4.5, seed=5),
        ]


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """A fresh installation; no worker is ever started in it."""
    import streamlit as st

    from tritune import worker

    monkeypatch.setenv("TRITUNE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("TRITUNE_MODEL_REPO", str(tmp_path / "models"))
    monkeypatch.delenv("TRITUNE_DATABASE_URL", raising=False)
    monkeypatch.setattr(worker, "ensure", lambda settings: None)
    monkeypatch.chdir(ROOT)
    settings = Settings.from_env()
    settings.model_repo.mkdir(parents=True)
    store = Store(settings.database_url)
    yield Installation(settings, store)
    store.close()
    st.cache_data.clear()
    st.cache_resource.clear()


@pytest.fixture(scope="session")
def _published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with the MNIST model, exported once."""
    from tritune import mnist, model_config, onnx_model
    from tritune.repository import ModelRepository

    folder = tmp_path_factory.mktemp("models")
    path = mnist.export(17, tmp_path_factory.mktemp("export"))
    config = model_config.generate(onnx_model.inspect(path), "mnist", 32)
    ModelRepository(folder).publish("mnist", path, config)
    return folder


@pytest.fixture
def with_model(installation: Installation, _published: Path) -> Installation:
    """The installation with MNIST published as version 1."""
    shutil.copytree(_published, installation.settings.model_repo, dirs_exist_ok=True)
    return installation


@pytest.fixture
def serve(with_model: Installation, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the pages see a server that serves MNIST in a given configuration, without one running."""
    import streamlit as st

    from tritune import model_config, servers
    from tritune.servers import ServerKind, ServerState, ServerStatus

    endpoints = Endpoints("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002", control=("tritune", "secret"))

    def served(configuration: Configuration = PLAIN, *, forget: bool = True, gpu: bool = False) -> None:
        ready = ServerStatus(ServerState.READY, ServerKind.EMBEDDED, endpoints, "2.51.0", None, 4711, True, True, 1.0)
        monkeypatch.setattr(servers, "status", lambda settings: ready)
        monkeypatch.setattr(servers, "connect", lambda settings: FakeTriton(endpoints))
        monkeypatch.setattr(servers, "logs", lambda settings, lines=200: "I1130 server ready")
        change = TuneChange(
            preferred_batch_size=configuration.preferred_batch_size or None,
            max_queue_delay_microseconds=configuration.max_queue_delay_microseconds or None,
            max_batch_size=configuration.max_batch_size,
            instance_count=configuration.instance_count,
            dynamic_batching=configuration.dynamic_batching,
        )
        from tritune.repository import ModelRepository

        now = model_config.change(ModelRepository(with_model.settings.model_repo).config("mnist"), change)
        FakeTriton.now, FakeTriton.gpu = now, gpu
        if forget:
            st.cache_data.clear()

    return served


class FakeTriton:
    """What the pages ask of a running Triton, answered without one."""

    now: Any = None
    gpu = False
    has_model_control = True
    has_statistics = False
    has_model_config = True

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints

    def index(self) -> list[dict[str, Any]]:
        return [{"name": "mnist", "version": "1", "state": "READY", "reason": ""}]

    def __enter__(self) -> FakeTriton:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def has_gpu(self) -> bool:
        return self.gpu

    def metrics(self) -> dict[str, float] | None:
        return None

    def versions(self, name: str) -> tuple[int, ...]:
        return (1,)

    def model_ready(self, name: str) -> bool:
        return name == "mnist"

    def config(self, name: str) -> dict[str, Any]:
        from google.protobuf import json_format

        document = json_format.MessageToDict(self.now.message, preserving_proto_field_name=True)
        return dict(document)

    def signature(self, name: str) -> Any:
        return self.now.signature

    def infer(self, name: str, body: bytes, headers: Any = None) -> tuple[int, dict[str, str], bytes]:
        import json

        scores = [-9.0] * 10
        scores[7] = -0.01
        answer = {"outputs": [{"name": "OUTPUT__0", "datatype": "FP32", "shape": [1, 10], "data": scores}]}
        return 200, {}, json.dumps(answer).encode()
