"""The generator as a child process: its window, its life signs, its end and its last word."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen import child
from loadgen.child import Child
from loadgen.histogram import Tally
from loadgen.outcome import (
    Live,
    Outcome,
    Phase,
    most_frequent,
    read_document,
    reserve_outcome,
    write_live,
    write_outcome,
)
from loadgen.samples import Samples, Status, read_stream
from loadgen.schedule import planned_ns
from tritune.arrival_plan import parse_stages
from tritune.errors import InputError, LoadTestError
from tritune.load_plan import Arrivals, GeneratorPlan, LoadPlan
from tritune.plan import Endpoints, Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (4,)),), 8)
ROOT = Path(__file__).resolve().parents[2]


def plan_for(address: str, **options: Any) -> GeneratorPlan:
    values = {"duration_s": 1.0, "warmup_s": 0.3} | options
    return GeneratorPlan(LoadPlan("m", **values), Endpoints(address), SIGNATURE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Start generators in a folder with a space in its name; none outlives the test."""
    started: list[Child] = []

    def begin(plan: GeneratorPlan) -> Child:
        started.append(child.start(plan, tmp_path / "a trial" / str(len(started))))
        return started[-1]

    yield begin
    for made in started:
        made.cancel()


def wait_for_load(made: Child, seconds: float = 0.3) -> None:
    """Until the window is fixed and `seconds` of it are over."""
    limit = time.monotonic() + 30
    while (window := made.window()) is None:
        assert made.poll() is None, made.outcome()
        assert time.monotonic() < limit
        time.sleep(0.02)
    time.sleep(max(0.0, window[0] / 1e9 + seconds - time.monotonic()))


def in_window(samples: Samples, outcome: Outcome) -> np.ndarray[Any, Any]:
    return (samples.intended_ns >= outcome.window_start_ns) & (samples.intended_ns < outcome.window_end_ns)


def test_a_run_leaves_samples_a_window_and_an_outcome(
    fake_server: Callable[..., Any], start: Callable[..., Child]
) -> None:
    made = start(plan_for(fake_server("--law", "fixed:5").address, concurrency=4))
    wait_for_load(made, 0.5)
    live = made.live()
    assert live is not None
    assert live.phase in (Phase.WARMUP, Phase.MEASURING)
    assert made.processes() == 1
    window = made.window()
    assert window is not None
    before = made.cpu_ns()
    assert made.wait(30) == 0
    outcome = made.outcome()
    assert (outcome.window_start_ns, outcome.window_end_ns) == window
    assert window[1] - window[0] == 10**9
    assert before > 0
    assert made.processes() == 0
    samples = read_stream(made.folder / "samples.arrow")
    assert set(samples.status.tolist()) == {Status.OK}
    assert samples.sent_ns.max() < window[1]
    assert samples.done_ns.max() > window[1]
    warm = samples.intended_ns < window[0]
    assert 4 * 20 < np.count_nonzero(warm) <= 4 * 61
    assert samples.intended_ns.min() >= window[0] - 300_000_000
    wall_s = (outcome.window_start_ns + outcome.wall_minus_monotonic_ns) / 1e9
    assert abs(wall_s - time.time()) < 30
    assert outcome.errors == ()
    assert outcome.notes == ()
    assert not outcome.cancelled


def test_the_caller_is_not_patched_by_locust() -> None:
    code = (
        "import socket, sys; plain = socket.socket; import loadgen.child\n"
        "sys.exit(socket.socket is not plain or 'locust' in sys.modules or 'gevent' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("options", [{"concurrency": 3}, {"rate_rps": 200.0, "arrivals": Arrivals.POISSON}])
def test_two_workers_are_merged_exactly(
    fake_server: Callable[..., Any], start: Callable[..., Child], tmp_path: Path, options: dict[str, Any]
) -> None:
    log = tmp_path / "fake.log"
    server = fake_server("--law", "fixed:5", "--log", str(log))
    made = start(plan_for(server.address, workers=2, **options))
    assert made.wait(40) == 0
    outcome = made.outcome()
    samples = read_stream(made.folder / "samples.arrow")
    assert set(samples.status.tolist()) == {Status.OK}
    assert set(samples.worker.tolist()) == {0, 1}
    server.stop()
    arrived = np.frombuffer(log.read_bytes(), dtype=np.int64)[::2]
    assert len(arrived) == len(samples)  # not one is lost or counted twice
    if "rate_rps" in options:
        from loadgen.schedule import offsets_ns

        begin = outcome.window_start_ns - 300_000_000
        expected = np.concatenate(list(offsets_ns(200, Arrivals.POISSON, 0, 1_300_000_000))) + begin
        np.testing.assert_array_equal(np.sort(samples.intended_ns), expected)


def test_stages_keep_their_schedule_over_two_workers_and_a_reached_cap_is_told(
    fake_server: Callable[..., Any], start: Callable[..., Child]
) -> None:
    plan = plan_for(
        fake_server("--law", "fixed:50").address,
        stages=parse_stages("500ms:40,200ms:400,300ms:40-80"),
        workers=2,
        max_connections=3,
    )
    made = start(plan)
    assert made.wait(40) == 0
    outcome = made.outcome()
    samples = read_stream(made.folder / "samples.arrow")
    begin = outcome.window_start_ns - 300_000_000
    expected = np.concatenate(list(planned_ns(plan.load, 1_300_000_000))) + begin
    np.testing.assert_array_equal(np.sort(samples.intended_ns), expected)
    (note,) = outcome.notes
    assert note["code"] == "connections_capped"
    assert "All 3 connections" in note["message"]


@pytest.mark.parametrize("limit", [0, 100])
def test_beyond_the_limit_of_raw_samples_counts_take_their_place_and_the_outcome_says_so(
    fake_server: Callable[..., Any], start: Callable[..., Child], limit: int
) -> None:
    plan = plan_for(fake_server("--law", "fixed:2").address, rate_rps=300.0, workers=2, max_raw_samples=limit)
    made = start(plan)
    assert made.wait(40) == 0
    outcome = made.outcome()
    assert [note["code"] for note in outcome.notes] == ["histogram"]
    assert ("as asked for" if limit == 0 else "more than 100") in outcome.notes[0]["message"]
    tally = read_stream(made.folder / "samples.arrow")
    assert isinstance(tally, Tally)
    assert len(tally) == 390
    # the machine may be busy: the last one may be answered late or not be sent in time
    assert tally.counts["ok"] + tally.counts["drain"] + tally.counts["unsent"] == 300
    assert tally.counts["warmup"] == 90


AHEAD_S = 1000


def own_clock() -> list[str]:
    """What starts a process whose monotonic clock is AHEAD_S ahead, as another machine's would be."""
    command = ["unshare", "--time", "--monotonic", str(AHEAD_S)]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("time namespaces cannot be made here")
    return command


@pytest.mark.parametrize("load", [{"rate_rps": 200.0, "arrivals": Arrivals.POISSON}, {"concurrency": 4}])
def test_workers_on_machines_with_other_clocks_keep_the_one_schedule(
    fake_server: Callable[..., Any], tmp_path: Path, load: dict[str, Any]
) -> None:
    prefix = own_clock()
    plan = plan_for(fake_server("--law", "fixed:5").address, workers=2, **load)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_dict()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    locust = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadgen" / "locustfile.py"), "--headless"]
    master = ["--master", "--expect-workers", "2", "--users", "4", "--spawn-rate", "4", "TritonHttpUser"]
    master += ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--tritune-folder", str(tmp_path)]
    worker = ["--worker", "--master-host", "127.0.0.1", "--master-port", port]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path}
    processes = [
        subprocess.Popen([*locust, *master], **quiet),
        subprocess.Popen([*locust, *worker], **quiet),
        subprocess.Popen([*prefix, *locust, *worker], **quiet),
    ]
    try:
        assert processes[0].wait(60) == 0
    finally:
        for process in processes:
            process.terminate()
            process.wait(10)
    outcome = Outcome.from_dict(read_document(tmp_path / "outcome.json") or {})
    (note,) = outcome.notes
    assert note["code"] == "clock_mapping"
    assert "2 of 2 workers run on other machines" in note["message"]
    samples = read_stream(tmp_path / "samples.arrow")
    assert isinstance(samples, Samples)
    assert set(samples.status.tolist()) == {Status.OK}, outcome.errors
    assert set(samples.worker.tolist()) == {0, 1}
    assert (samples.done_ns - samples.sent_ns).min() >= 5_000_000
    begin = outcome.window_start_ns - 300_000_000
    error_ns = 20_000_000  # half a round trip between busy processes; without the mapping it would be 1000 s
    assert begin - error_ns <= samples.intended_ns.min()
    assert samples.intended_ns.max() < outcome.window_end_ns + error_ns
    if "rate_rps" in load:
        expected = np.concatenate(list(planned_ns(plan.load, 1_300_000_000))) + begin
        for index in (0, 1):
            mine = np.sort(samples.intended_ns[samples.worker == index])
            assert np.ptp(mine - expected[index::2]) == 0  # the whole share, moved by the mapping's error alone
            assert abs(int(mine[0] - expected[index])) < error_ns


def test_a_cancel_is_quick_and_keeps_what_was_measured(
    fake_server: Callable[..., Any], start: Callable[..., Child]
) -> None:
    made = start(plan_for(fake_server("--law", "fixed:5").address, concurrency=2, duration_s=600))
    wait_for_load(made)
    begun = time.monotonic()
    made.cancel()
    assert time.monotonic() - begun < 5
    assert made.processes() == 0
    outcome = made.outcome()
    assert outcome.cancelled
    samples = read_stream(made.folder / "samples.arrow")
    assert np.count_nonzero(in_window(samples, outcome)) > 10


def test_a_cancel_before_the_load_is_one_sentence(fake_server: Callable[..., Any], start: Callable[..., Child]) -> None:
    made = start(plan_for(fake_server().address, concurrency=2))
    made.cancel()
    with pytest.raises(LoadTestError, match="cancelled before it had measured anything"):
        made.outcome()


def kill_one_worker(made: Child) -> None:
    workers = [int(pid) for pid in Path(f"/proc/{made.pid}/task/{made.pid}/children").read_text().split()]
    os.kill(workers[-1], signal.SIGKILL)


@pytest.mark.parametrize("options", [{"concurrency": 4}, {"rate_rps": 200.0}])
def test_a_killed_worker_costs_its_share_and_is_told(
    fake_server: Callable[..., Any], start: Callable[..., Child], options: dict[str, Any]
) -> None:
    made = start(plan_for(fake_server("--law", "fixed:5").address, workers=2, duration_s=2, **options))
    wait_for_load(made)
    kill_one_worker(made)
    assert made.wait(40) == 0
    outcome = made.outcome()
    assert [note["code"] for note in outcome.notes] == ["lost_worker"]
    assert "of 2 was lost 0." in outcome.notes[0]["message"]
    samples = read_stream(made.folder / "samples.arrow")
    late = samples.sent_ns > outcome.window_end_ns - 500_000_000
    assert len(set(samples.worker[late].tolist())) == 1  # the other one went on to the end
    if "rate_rps" in options:
        unsent = np.count_nonzero(samples.status == Status.UNSENT)
        assert 100 <= unsent <= 200
        assert len(samples) >= 2.3 * 200 - 40  # 0.1 s of what was measured may be missing


def test_a_killed_generator_is_one_sentence_and_leaves_no_process(
    fake_server: Callable[..., Any], start: Callable[..., Child]
) -> None:
    made = start(plan_for(fake_server("--law", "fixed:5").address, concurrency=4, workers=2, duration_s=60))
    wait_for_load(made, 0.5)
    os.kill(made.pid, signal.SIGKILL)
    assert made.wait(10) == -signal.SIGKILL
    assert made.processes() == 0
    with pytest.raises(LoadTestError, match=r"was killed by signal 9 before it had finished.*generator\.log"):
        made.outcome()
    assert len(read_stream(made.folder / "samples.arrow")) > 0


def test_a_generator_whose_starter_is_gone_ends_by_itself(fake_server: Callable[..., Any], tmp_path: Path) -> None:
    plan = plan_for(fake_server("--law", "fixed:5").address, concurrency=2, duration_s=60)
    code = (
        "import json, os, sys, time; from pathlib import Path\n"
        "from loadgen import child; from tritune.load_plan import GeneratorPlan\n"
        f"plan = GeneratorPlan.from_dict(json.loads({json.dumps(plan.to_dict())!r}))\n"
        f"made = child.start(plan, Path({str(tmp_path / 'run')!r}))\n"
        "while made.window() is None: time.sleep(0.02)\n"
        "print(made.pid, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True, capture_output=True, text=True
    )
    pid = int(done.stdout)
    limit = time.monotonic() + 15
    while (document := read_document(tmp_path / "run" / "outcome.json")) is None and time.monotonic() < limit:
        time.sleep(0.05)
    assert document is not None
    assert "had started this load test is gone" in document["error"]
    while Path(f"/proc/{pid}/exe").exists() and time.monotonic() < limit:
        time.sleep(0.05)


def test_nobody_listening_is_one_sentence_with_what_to_do(
    fake_server: Callable[..., Any], start: Callable[..., Child]
) -> None:
    server = fake_server()
    server.process.kill()
    server.process.wait()
    made = start(plan_for(server.address, concurrency=2))
    assert made.wait(30) == 1
    with pytest.raises(LoadTestError, match=r"Nothing that speaks http answers at 127.*Connection refused.*start"):
        made.outcome()


def test_a_disk_that_fills_up_is_one_sentence_and_keeps_what_was_written(
    fake_server: Callable[..., Any], start: Callable[..., Child]
) -> None:
    made = start(plan_for(fake_server("--law", "fixed:1").address, concurrency=16, duration_s=60))
    written = made.folder / "samples.arrow"
    limit = time.monotonic() + 20
    while not written.exists() or written.stat().st_size < 20_000:
        assert time.monotonic() < limit, "no samples were written"
        time.sleep(0.05)
    size = written.stat().st_size + 1000  # no file may grow much beyond what is there
    resource.prlimit(made.pid, resource.RLIMIT_FSIZE, (size, size))
    assert made.wait(30) == 1
    with pytest.raises(LoadTestError, match=r"could not be written to .*File too large.*Free some space"):
        made.outcome()
    assert len(read_stream(made.folder / "samples.arrow")) > 100


def test_a_plan_that_makes_no_request_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="above max_batch_size"):
        child.start(plan_for("127.0.0.1:1", concurrency=1, batch=99), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LoadTestError, match="could not be started in"):
        child.start(plan_for("127.0.0.1:1", concurrency=1), tmp_path / "file" / "run")


def test_a_running_generator_has_no_outcome(fake_server: Callable[..., Any], start: Callable[..., Child]) -> None:
    made = start(plan_for(fake_server("--law", "fixed:5").address, concurrency=1, duration_s=60))
    with pytest.raises(LoadTestError, match="still runs"):
        made.outcome()
    with pytest.raises(LoadTestError, match=r"still runs after 0\.01 s"):
        made.wait(0.01)


def test_live_and_outcome_survive_their_files(tmp_path: Path) -> None:
    live = Live(Phase.MEASURING, 1.5, 10.0, 99.0, None, 5, 1, 7, 8)
    write_live(tmp_path, live)
    assert Live.from_dict(read_document(tmp_path / "live.json") or {}) == live
    outcome = Outcome(
        1,
        2,
        3,
        spin_ns=4,
        errors=most_frequent({"b": 1, "a": 5}),
        cancelled=True,
        notes=({"code": "c", "message": "m"},),
    )
    reserve_outcome(tmp_path)
    write_outcome(tmp_path, outcome)
    assert Outcome.from_dict(read_document(tmp_path / "outcome.json") or {}) == outcome
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live.json", "outcome.json"]


def test_only_the_most_frequent_errors_are_kept() -> None:
    rows = most_frequent({f"error {number}": number for number in range(1, 100)})
    assert len(rows) == 20
    assert rows[0] == {"message": "error 99", "count": 99}
