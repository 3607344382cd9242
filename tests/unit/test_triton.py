"""A client of a running Triton, against a small HTTP server that answers what a real one was seen to answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tritune import triton as triton_module
from tritune.errors import InputError, ServerDownError, ServerError, TritonRefusedError
from tritune.plan import Endpoints, Signature, TensorSpec
from tritune.triton import Triton, check_model_name, plain_reason
from tritune.triton_statistics import parse_metrics, parse_statistics

READY = (200, "")
STATS = {
    "model_stats": [
        {
            "name": "m",
            "version": "1",
            "inference_count": 30,
            "execution_count": 12,
            "inference_stats": {
                "success": {"count": 20, "ns": 9_000_000},
                "fail": {"count": 1, "ns": 5},
                "queue": {"count": 20, "ns": 2_000_000},
                "compute_input": {"count": 20, "ns": 200_000},
                "compute_infer": {"count": 20, "ns": 6_000_000},
                "compute_output": {"count": 20, "ns": 400_000},
            },
            "batch_stats": [
                {"batch_size": 1, "compute_infer": {"count": 4, "ns": 1}},
                {"batch_size": 4, "compute_infer": {"count": 8, "ns": 1}},
            ],
        }
    ]
}


class Answers:
    """What the server answers to `METHOD path`, and what it was asked: (method and path, body, headers)."""

    def __init__(self) -> None:
        self.by_call: dict[str, tuple[int, object] | list[tuple[int, object]]] = {}
        self.asked: list[tuple[str, bytes, dict[str, str]]] = []

    def calls(self) -> list[str]:
        return [call for call, _, _ in self.asked]


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def address(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            call = f"{self.command} {self.path}"
            answers.asked.append((call, body, {name.lower(): value for name, value in self.headers.items()}))
            found = answers.by_call.get(call, (404, {"error": "Not Found"}))
            if isinstance(found, list):
                found = found.pop(0) if len(found) > 1 else found[0]
            status, content = found
            data = content if isinstance(content, bytes) else str(content).encode()
            if isinstance(content, dict | list):
                data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def triton(address: str) -> Iterator[Triton]:
    with Triton(Endpoints(address, headers={"X-Team": "blue"}, control=("tritune-control", "secret"))) as client:
        yield client


# --- what is sent --------------------------------------------------------------------------------------------------


def test_the_control_header_goes_with_repository_calls_only(triton: Triton, answers: Answers) -> None:
    answers.by_call = {"POST /v2/repository/index": (200, []), "GET /v2/health/ready": READY}
    assert triton.index() == []
    assert triton.is_ready()
    triton.infer("m", b"body", {"Inference-Header-Content-Length": "4"})
    index, ready, infer = (headers for _, _, headers in answers.asked)
    assert index["tritune-control"] == "secret"
    assert "tritune-control" not in ready
    assert "tritune-control" not in infer
    assert infer["inference-header-content-length"] == "4"
    assert all(headers["x-team"] == "blue" for headers in (index, ready, infer))


def test_connections_are_kept(triton: Triton, answers: Answers) -> None:
    answers.by_call = {"GET /v2/health/live": READY}
    assert all(triton.is_live() for _ in range(5))
    assert triton._pool.num_connections == 1


def test_an_inference_returns_whatever_the_server_says(triton: Triton, answers: Answers) -> None:
    answers.by_call = {"POST /v2/models/m/infer": (400, b"no")}
    status, headers, body = triton.infer("m", b"x")
    assert (status, body, headers["Content-Length"]) == (400, b"no", "2")


# --- no server -----------------------------------------------------------------------------------------------------


def test_nothing_listening_is_said_with_the_next_step(port: int) -> None:
    with Triton(Endpoints(f"127.0.0.1:{port}", metrics=f"127.0.0.1:{port}"), timeout_s=1) as nobody:
        assert not nobody.is_live()
        assert not nobody.is_ready()
        assert not nobody.model_ready("m")
        assert not nobody.listens()
        assert nobody.metrics() is None
        with pytest.raises(ServerDownError, match=r"No server answers at .*connection refused.*tritune server start"):
            nobody.index()


@pytest.fixture
def port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("text", ["", "localhost", "host:", ":8000", "host:port"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(InputError, match="must be host:port"):
        Triton(Endpoints(text))


@pytest.mark.parametrize("host", ["☃", "ü" * 64, "a..b☃", "\udcff"])
def test_a_host_that_can_be_no_name_is_refused_in_words(host: str) -> None:
    with pytest.raises((InputError, ServerDownError), match=r"no name that can be looked up|No server answers"):
        Triton(Endpoints(f"{host}:8000")).server_metadata()


def test_something_that_is_no_triton_is_refused_in_words(triton: Triton, answers: Answers) -> None:
    answers.by_call = {"GET /v2": (200, b"<html>hello</html>"), "GET /v2/models/m": (200, [1])}
    with pytest.raises(TritonRefusedError, match="<html>hello</html>"):
        triton.server_metadata()
    with pytest.raises(TritonRefusedError, match="no JSON object"):
        triton.metadata("m")


# --- loading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "$(touch x)", "a;b", "a/b", "../m", "", ".hidden", "-x", "ä", "m\n", "x" * 65])
def test_a_name_that_a_shell_would_read_never_reaches_triton(name: str, triton: Triton, answers: Answers) -> None:
    for call in (lambda: triton.load(name), lambda: triton.unload(name), lambda: check_model_name(name)):
        with pytest.raises(InputError, match="is not allowed"):
            call()
    assert answers.asked == []


def test_a_load_is_checked_by_its_outcome_not_by_its_status(triton: Triton, answers: Answers) -> None:
    answers.by_call = {
        "POST /v2/repository/models/m/load": (200, ""),
        "GET /v2/models/m/ready": (400, ""),
        "POST /v2/repository/index": (
            200,
            [{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "Internal: out of memory"}],
        ),
    }
    with pytest.raises(TritonRefusedError, match="Triton refused to load m: out of memory"):
        triton.load("m")
    answers.by_call["GET /v2/models/m/ready"] = READY
    triton.load("m")


def test_a_refused_load_says_what_triton_said(triton: Triton, answers: Answers) -> None:
    said = (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: InvalidArgument: unexpected inference "
        "output 'z', allowed outputs are: y\n\nAt:\n  /tmp/t/backends/onnxruntime/model.py(1): validate\n"
        "  /tmp/t/backends/onnxruntime/model.py(2): initialize\n;\n"
    )
    answers.by_call = {"POST /v2/repository/models/m/load": (400, {"error": said})}
    with pytest.raises(TritonRefusedError) as refused:
        triton.load("m")
    assert refused.value.reason == "unexpected inference output 'z', allowed outputs are: y"
    assert refused.value.status == 400
    assert str(refused.value) == f"Triton refused to load m: {refused.value.reason}"


def test_a_reason_that_the_answer_hides_comes_from_the_log(address: str, answers: Answers) -> None:
    said = {"error": "failed to load 'm', failed to poll from model repository"}
    answers.by_call = {"POST /v2/repository/models/m/load": (400, said), "POST /v2/repository/index": (200, [])}
    asked: list[str] = []

    def log(name: str) -> str:
        asked.append(name)
        return "Invalid argument: dynamic batching preferred size must be <= max batch size for m in /private/models/m"

    plain = Triton(Endpoints(address))
    knowing = Triton(Endpoints(address), reason_of=log, path_shown=("/private/models", "/home/me/my models"))
    with plain, knowing:
        with pytest.raises(TritonRefusedError, match="failed to poll from model repository"):
            plain.load("m")
        with pytest.raises(TritonRefusedError) as refused:
            knowing.load("m")
    assert asked == ["m"]
    assert refused.value.reason == (
        "dynamic batching preferred size must be <= max batch size for m in /home/me/my models/m"
    )


def test_a_server_without_explicit_control_is_told_apart(triton: Triton, answers: Answers) -> None:
    said = {"error": "explicit model load / unload is not allowed if polling is enabled"}
    answers.by_call = {"POST /v2/repository/models/m/load": (503, said)}
    with pytest.raises(TritonRefusedError, match="without --model-control-mode=explicit"):
        triton.load("m")


def test_a_load_is_looked_at_before_it_is_asked_for(address: str, answers: Answers) -> None:
    def refuse(name: str, config: str | None) -> None:
        raise InputError(f"{name} is not to be loaded.")

    with Triton(Endpoints(address), before_load=refuse) as client, pytest.raises(InputError, match="not to be loaded"):
        client.load("m")
    assert answers.asked == []


def test_an_unload_waits_until_nothing_is_served(triton: Triton, answers: Answers) -> None:
    def state(word: str) -> tuple[int, object]:
        return 200, [{"name": "m", "version": "1", "state": word}, {"name": "other", "version": "1", "state": "READY"}]

    answers.by_call = {
        "POST /v2/repository/models/m/unload": (200, ""),
        "POST /v2/repository/index": [state("READY"), state("UNLOADING"), state("UNAVAILABLE")],
    }
    triton.unload("m")
    assert answers.calls().count("POST /v2/repository/index") == 3
    answers.by_call["POST /v2/repository/index"] = state("UNLOADING")
    with pytest.raises(ServerError, match="still being served"):
        triton.unload("m", wait_s=0.01)


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ("load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: words;\n", "words"),
        ("failed to load 'm', no version is available", "no version is available"),
        (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: A;\n"
            "version 2 is at UNAVAILABLE state: Internal: B;\n",
            "A; B",
        ),
        ("something new", "something new"),
        ("", ""),
    ],
)
def test_reasons_lose_their_wrapping(said: str, plain: str) -> None:
    assert plain_reason("m", said) == plain


# --- what a model looks like ---------------------------------------------------------------------------------------


def test_a_signature_comes_from_the_served_configuration(triton: Triton, answers: Answers) -> None:
    config = {
        "max_batch_size": 8,
        "input": [{"name": "t", "data_type": "TYPE_STRING", "dims": ["-1"]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [2, 3]}],
    }
    answers.by_call = {"GET /v2/models/m/config": (200, config)}
    expected = Signature((TensorSpec("t", "BYTES", (-1,)),), (TensorSpec("y", "FP32", (2, 3)),), 8)
    assert triton.signature("m") == expected


def test_a_server_without_configurations_gives_full_shapes(triton: Triton, answers: Answers) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    answers.by_call = {"GET /v2/models/m": (200, {"name": "m", "inputs": [tensor], "outputs": []})}
    assert triton.signature("m") == Signature((TensorSpec("x", "FP32", (-1, 4)),), (), 0)


def test_an_unknown_model_is_not_taken_for_a_server_without_configurations(triton: Triton, answers: Answers) -> None:
    said = {"error": "Request for unknown model: 'm' is not found"}
    answers.by_call = {"GET /v2/models/m/config": (404, said), "GET /v2/models/m": (404, said)}
    with pytest.raises(TritonRefusedError, match="unknown model"):
        triton.signature("m")


def test_what_a_server_can_do_is_read_once_from_its_extensions(triton: Triton, answers: Answers) -> None:
    names = ["model_repository", "model_repository(unload_dependents)", "statistics"]
    answers.by_call = {"GET /v2": (200, {"version": "2.51.0", "extensions": names})}
    assert (triton.has_model_control, triton.has_statistics, triton.has_model_config) == (True, True, False)
    assert answers.calls() == ["GET /v2"]
    assert not replace(triton, can_control=False).has_model_control


# --- counters ------------------------------------------------------------------------------------------------------


def test_statistics_are_read(triton: Triton, answers: Answers) -> None:
    answers.by_call = {"GET /v2/models/m/stats": (200, STATS)}
    reading = triton.statistics("m")
    assert (reading.inference_count, reading.execution_count, reading.success_count) == (30, 12, 20)
    assert (reading.fail_count, reading.queue_ns, reading.versions) == (1, 2_000_000, ("1",))
    assert reading.batch_executions == {1: 4, 4: 8}


def test_a_difference_is_per_request_and_only_of_the_time_between() -> None:
    before = parse_statistics(STATS, 1_000_000_000)
    after = replace(
        before,
        taken_ns=3_500_000_000,
        inference_count=60,
        execution_count=22,
        success_count=30,
        queue_ns=7_000_000,
        compute_infer_ns=16_000_000,
        batch_executions={1: 4, 4: 15, 8: 3},
    )
    difference = after.since(before)
    assert difference is not None
    assert difference.window_s == 2.5
    assert difference.average_batch == 3.0
    assert difference.batch_sizes == {4: 7, 8: 3}
    assert (difference.queue_us, difference.compute_infer_us, difference.compute_output_us) == (500.0, 1000.0, 0.0)


def test_no_traffic_has_no_averages() -> None:
    reading = parse_statistics(STATS, 0)
    difference = reading.since(reading)
    assert difference is not None
    assert (difference.average_batch, difference.queue_us, difference.batch_sizes) == (None, None, {})


@pytest.mark.parametrize(
    "change",
    [
        lambda s: replace(s, inference_count=s.inference_count - 1),
        lambda s: replace(s, batch_executions={1: 3, 4: 8}),
        lambda s: replace(s, batch_executions={}),
        lambda s: replace(s, versions=("2",)),
    ],
)
def test_counters_that_went_back_or_of_another_version_give_no_difference(
    change: Callable[[object], object],
) -> None:
    before = parse_statistics(STATS, 0)
    assert change(before).since(before) is None  # type: ignore[attr-defined]


def test_numbers_may_come_as_text_and_versions_are_added_up() -> None:
    model = {**STATS["model_stats"][0], "inference_count": "30"}
    reading = parse_statistics({"model_stats": [model, {**model, "version": "2"}]}, 0)
    assert reading.inference_count == 60
    assert reading.batch_executions == {1: 8, 4: 16}
    assert reading.versions == ("1", "2")
    assert parse_statistics({}, 0).inference_count == 0


def test_metrics_are_read(address: str, answers: Answers) -> None:
    text = b'# HELP x\nnv_inference_count{model="m",version="1"} 12\nup 1 1700000000\nbad\nodd NaNN\n'
    answers.by_call = {"GET /metrics": (200, text)}
    with Triton(Endpoints(address, metrics=address)) as client:
        assert client.metrics() == {'nv_inference_count{model="m",version="1"}': 12.0, "up": 1.0}
    with Triton(Endpoints(address)) as client:
        assert client.metrics() is None
    assert parse_metrics("") == {}


def test_a_load_ends_where_the_server_is_gone_and_a_stub_of_it_holds_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_module, "LOOK_S", 0.02)
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def die() -> None:
        held.append(listener.accept()[0])
        listener.close()

    server = threading.Thread(target=die)
    server.start()
    triton = Triton(Endpoints(f"127.0.0.1:{listener.getsockname()[1]}", None, None))
    with pytest.raises(ServerDownError, match="ended before it had answered"):
        triton.load("m")
    server.join()
    held[0].close()
    triton.close()
