"""The embedded Triton, for real: what was paid for by trying, one test each."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tritune import servers
from tritune.errors import InputError, ServerDownError, ServerError, TritonRefusedError
from tritune.plan import TensorSpec
from tritune.servers import ServerKind, ServerState, ServerStatus, environment, launch, record
from tritune.settings import Settings
from tritune.triton import Triton

IO = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }'
ONNX_CONFIG = 'platform: "onnxruntime_onnx" max_batch_size: 8 ' + IO

PATH_FOR_A_SHELL = "e n v $(touch pwned) 'c"
Publish = Callable[..., Path]


def ask(triton: Triton, model: str, rows: list[list[float]], datatype: str = "FP32") -> tuple[int, dict]:
    """One JSON inference: (status, answer)."""
    tensor = {"name": "x", "shape": list(np.shape(rows)), "datatype": datatype, "data": np.ravel(rows).tolist()}
    status, _, body = triton.infer(model, json.dumps({"inputs": [tensor]}).encode())
    return status, json.loads(body)


def ask_in(code: str, settings: Settings) -> str:
    """The output of Python code in a new process of the same installation."""
    environ = {
        **os.environ,
        "TRITUNE_RESULTS": str(settings.results),
        "TRITUNE_MODEL_REPO": str(settings.model_repo),
        "TRITUNE_EMBEDDED_ENV": str(settings.embedded_env),
        "PYTHONPATH": str(settings.root),
    }
    program = f"from tritune import servers\nfrom tritune.settings import Settings\ns = Settings.from_env()\n{code}"
    # capture_output waits for the pipes' ends: a server that had inherited them would hold this up for ever.
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    return answer.stdout


# --- starting ------------------------------------------------------------------------------------------------------


def test_a_path_with_spaces_and_shell_characters_serves_and_runs_nothing(
    installation: Settings, triton_server: ServerStatus, triton: Triton
) -> None:
    assert " " in str(installation.model_repo)
    assert "$(" in str(installation.model_repo)
    assert ask(triton, "double", [[1, 2, 3, 4]])[1]["outputs"][0]["data"] == [2, 4, 6, 8]
    known = record.read(installation)
    assert known is not None
    folders = [Path.cwd(), Path(str(known.folder)), installation.model_repo, installation.results]
    assert not [path for folder in folders for path in folder.rglob("pwned") if path.is_file()]


def test_triton_never_sees_the_path(installation: Settings, triton_server: ServerStatus) -> None:
    command = Path(f"/proc/{triton_server.pid}/cmdline").read_bytes()
    assert b" " not in command
    assert b"$" not in command


def test_a_bad_model_is_told_and_does_not_stop_the_others(
    triton: Triton, start_messages: list[str], installation: Settings
) -> None:
    assert triton.model_ready("double")
    assert triton.model_ready("alone")
    assert not triton.model_ready("broken")
    assert triton.is_ready()
    told = next(message for message in start_messages if "broken" in message)
    assert told.startswith("Triton refused to load broken: onnx runtime error 7: Load model from ")
    assert f"{installation.model_repo}/broken/1/model.onnx" in told
    assert "Loaded double." in start_messages


def test_a_folder_whose_name_a_shell_would_run_is_not_loaded(triton: Triton, start_messages: list[str]) -> None:
    assert any("'x$(touch pwned)' is not allowed" in message for message in start_messages)
    with pytest.raises(InputError, match="is not allowed"):
        triton.load("x$(touch pwned)")


@pytest.mark.parametrize(
    "field",
    [
        'default_model_filename: "m;touch pwned"',
        'instance_group { name: "$(touch pwned)" }',
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/tmp/$(touch pwned)" } }',
        'new_field_of_a_newer_triton: "$(touch pwned)"',
    ],
)
def test_a_configuration_that_a_shell_would_run_is_not_loaded(
    installation: Settings, triton: Triton, publish: Publish, field: str
) -> None:
    publish(installation.model_repo, "injected", config=ONNX_CONFIG + field)
    with pytest.raises(InputError, match=r"is not allowed|that a shell would run"):
        triton.load("injected")


def test_the_server_belongs_to_no_terminal_and_only_this_user_reads_its_secret(
    installation: Settings, triton_server: ServerStatus
) -> None:
    assert triton_server.pid is not None
    assert os.getsid(triton_server.pid) == triton_server.pid
    streams = {str(Path(f"/proc/{triton_server.pid}/fd/{number}").readlink()) for number in (0, 1, 2)}
    assert streams == {"/dev/null", str(installation.server_log)}
    assert installation.server_file.stat().st_mode & 0o777 == 0o600
    known = record.read(installation)
    assert known is not None
    assert Path(str(known.folder)).stat().st_mode & 0o777 == 0o700


def test_a_new_process_finds_the_running_server_and_starts_no_second(
    installation: Settings, triton_server: ServerStatus
) -> None:
    answer = ask_in("print(servers.status(s).to_dict())\nprint(servers.start(s, progress=print).pid)", installation)
    seen, told, pid = answer.splitlines()
    assert "'state': 'ready'" in seen
    assert str(triton_server.pid) in seen
    assert told == f"A Triton is running already at {triton_server.endpoints.http}."  # type: ignore[union-attr]
    assert pid == str(triton_server.pid)


def test_it_listens_on_this_machine_only(triton_server: ServerStatus) -> None:
    ends = triton_server.endpoints
    assert ends is not None
    ports = {int(str(address).rpartition(":")[2]) for address in (ends.http, ends.grpc, ends.metrics)}
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {line.split()[1] for line in lines if line.split()[3] == "0A"}  # local addresses in state LISTEN
    ours = {address for address in listening if int(address.rpartition(":")[2], 16) in ports}
    assert {int(address.rpartition(":")[2], 16) for address in ours} == ports
    assert all("0100007F:" in address for address in ours)  # 127.0.0.1, or that as an IPv6 address


# --- the control API -----------------------------------------------------------------------------------------------


def test_without_the_header_nothing_is_loaded_and_inference_goes_on(triton_server: ServerStatus) -> None:
    assert triton_server.endpoints is not None
    with Triton(replace(triton_server.endpoints, control=None)) as stranger:
        for call in (stranger.index, lambda: stranger.load("double"), lambda: stranger.unload("double")):
            with pytest.raises(TritonRefusedError) as refused:
                call()
            assert refused.value.status == 403
        assert ask(stranger, "double", [[1, 1, 1, 1]])[0] == 200
        assert stranger.statistics("double").success_count > 0


def test_grpc_control_wants_the_header_too(triton_server: ServerStatus) -> None:
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import InferenceServerException

    assert triton_server.endpoints is not None
    assert triton_server.endpoints.control is not None
    name, value = triton_server.endpoints.control
    with grpc_client.InferenceServerClient(triton_server.endpoints.grpc) as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_model_repository_index()
        assert client.get_model_repository_index({launch.GRPC_CONTROL_PREFIX + name: value}).models
        assert client.is_model_ready("double")


def test_a_stranger_learns_the_header_from_the_status(triton_server: ServerStatus) -> None:
    assert triton_server.endpoints is not None
    assert triton_server.to_dict()["control_header"] == ": ".join(triton_server.endpoints.control or ())


# --- the backend ---------------------------------------------------------------------------------------------------


def test_a_missing_configuration_is_completed_as_nvidias_backend_does(triton: Triton) -> None:
    config = triton.config("double")
    assert (config["max_batch_size"], "dynamic_batching" in config) == (4, True)
    assert [(group["kind"], group["count"]) for group in config["instance_group"]] == [("KIND_CPU", 2)]
    assert triton.signature("double").inputs == (TensorSpec("x", "FP32", (4,)),)
    fixed = triton.config("alone")
    assert (fixed["max_batch_size"], "dynamic_batching" in fixed) == (0, False)
    assert triton.signature("alone").inputs == (TensorSpec("x", "FP32", (1, 4)),)


def test_a_batch_of_requests_is_run_as_one(installation: Settings, triton: Triton, publish: Publish) -> None:
    config = ONNX_CONFIG + (
        "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 200000 } instance_group { count: 1 }"
        ' parameters { key: "intra_op_thread_count" value { string_value: "3" } }'
    )
    publish(installation.model_repo, "batching", config=config)
    triton.load("batching")
    assert "3 intra-op threads" in servers.logs(installation)
    before = triton.statistics("batching")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: ask(triton, "batching", [[n] * 4]), range(16)))
    assert [answer["outputs"][0]["data"][0] for _, answer in answers] == [2 * n for n in range(16)]
    difference = triton.statistics("batching").since(before)
    assert difference is not None
    assert difference.success_count == difference.inference_count == 16
    assert difference.average_batch is not None
    assert difference.average_batch > 2
    assert sum(size * count for size, count in difference.batch_sizes.items()) == 16
    # A reload begins the counters anew: no difference is made up from that.
    busy = triton.statistics("batching")
    (installation.model_repo / "batching" / "config.pbtxt").write_text(config.replace("200000", "100000"))
    triton.load("batching")
    assert triton.statistics("batching").since(busy) is None


def test_one_bad_request_of_a_batch_fails_alone(installation: Settings, triton: Triton) -> None:
    folder = installation.model_repo / "table" / "1"
    folder.mkdir(parents=True)
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    values = np.array([0, 0, 1, 10, 2, 20], np.float32).tobytes()
    rows = helper.make_tensor("rows", TensorProto.FLOAT, [3, 2], values, raw=True)
    graph = helper.make_graph([helper.make_node("Gather", ["rows", "x"], ["y"])], "table", [x], [y], [rows])
    # Weights beside the file: the session must be opened by path.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    assert (folder / "weights").exists()
    (folder.parent / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 300000 '
        "preferred_batch_size: 3 } instance_group { count: 1 }"
        'input { name: "x" data_type: TYPE_INT64 dims: 1 reshape { shape: [] } }'
        'output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    )
    triton.load("table")
    with ThreadPoolExecutor(3) as pool:
        good, bad, last = pool.map(lambda n: ask(triton, "table", [[n]], "INT64"), (1, 99, 2))
    assert good[1]["outputs"][0]["data"] == [1, 10]
    assert last[1]["outputs"][0]["data"] == [2, 20]
    assert bad[0] != 200
    assert "onnx runtime error" in bad[1]["error"]
    assert "99" in bad[1]["error"]


TYPES = {
    "BOOL": (TensorProto.BOOL, np.bool_),
    "UINT8": (TensorProto.UINT8, np.uint8),
    "UINT16": (TensorProto.UINT16, np.uint16),
    "UINT32": (TensorProto.UINT32, np.uint32),
    "UINT64": (TensorProto.UINT64, np.uint64),
    "INT8": (TensorProto.INT8, np.int8),
    "INT16": (TensorProto.INT16, np.int16),
    "INT32": (TensorProto.INT32, np.int32),
    "INT64": (TensorProto.INT64, np.int64),
    "FP16": (TensorProto.FLOAT16, np.float16),
    "FP32": (TensorProto.FLOAT, np.float32),
    "FP64": (TensorProto.DOUBLE, np.float64),
    "BYTES": (TensorProto.STRING, None),
}
BF16 = {"BF16": (TensorProto.BFLOAT16, np.uint16), "FP32": (TensorProto.FLOAT, np.float32)}


@pytest.mark.parametrize("types", [TYPES, BF16], ids=["numpy's types", "BF16"])
def test_every_data_type_goes_in_and_out_unchanged_and_only_the_outputs_asked_for(
    installation: Settings, triton: Triton, types: dict[str, tuple[int, type | None]]
) -> None:
    folder = installation.model_repo / "types" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    ins = [helper.make_tensor_value_info(f"in_{key}", kind, ["n", 3]) for key, (kind, _) in types.items()]
    outs = [helper.make_tensor_value_info(f"out_{key}", kind, ["n", 3]) for key, (kind, _) in types.items()]
    nodes = [helper.make_node("Identity", [f"in_{key}"], [f"out_{key}"]) for key in types]
    graph = helper.make_graph(nodes, "types", ins, outs)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx"
    )
    triton.load("types")
    text = [b"\xc3\xa9\xc3\xa8", b"", b"x"]
    raw = {
        key: np.array([0, 1, 3]).astype(kind).tobytes()
        if kind
        else b"".join(len(item).to_bytes(4, "little") + item for item in text)
        for key, (_, kind) in types.items()
    }

    def infer(wanted: list[str]) -> dict[str, bytes]:
        inputs = [
            {"name": f"in_{key}", "shape": [1, 3], "datatype": key, "parameters": {"binary_data_size": len(data)}}
            for key, data in raw.items()
        ]
        outputs = [{"name": f"out_{key}", "parameters": {"binary_data": True}} for key in wanted]
        head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        status, headers, body = triton.infer("types", head + b"".join(raw.values()), length)
        assert status == 200, body
        start = int(headers["Inference-Header-Content-Length"])
        answer = {}
        for output in json.loads(body[:start])["outputs"]:
            end = start + output["parameters"]["binary_data_size"]
            answer[output["name"]] = body[start:end]
            start = end
        return answer

    assert infer(list(types)) == {f"out_{key}": data for key, data in raw.items()}
    assert infer(["FP32"]) == {"out_FP32": raw["FP32"]}


@pytest.mark.parametrize(
    ("dims", "config", "reason"),
    [
        (
            ["n", 3, 8],
            "max_batch_size: 8 " + IO.replace("dims: 4", "dims: [-1, 3, 8]"),
            "model 'refused', tensor 'x': the model expects 3 dimensions (shape [-1,3,8]) but the model configuration "
            "specifies 4 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,-1,3,8])",
        ),
        (
            [1, 4],
            "max_batch_size: 8 " + IO,
            "model 'refused', tensor 'x': for the model to support batching the shape should have at least 1 dimension "
            "and the first dimension must be -1; but shape expected by the model is [1,4]",
        ),
        (
            [1, 4],
            "max_batch_size: 8",
            "autofill failed for model 'refused': model does not support batching while non-zero max_batch_size is "
            "specified",
        ),
        (
            ["n", 4],
            "max_batch_size: 8 " + IO.replace("TYPE_FP32", "TYPE_INT64", 1),
            "unable to load model 'refused', configuration expects datatype TYPE_INT64 for input 'x', model provides "
            "TYPE_FP32",
        ),
        (
            ["n", 4],
            "max_batch_size: 8 " + IO.replace('"y"', '"model_output"'),
            "unexpected inference output 'model_output', allowed outputs are: y",
        ),
        (["n", 4], "batching_option: [4]", "failed to read text proto from "),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_in_nvidias_words(
    installation: Settings, triton: Triton, publish: Publish, dims: list[int | str], config: str, reason: str
) -> None:
    publish(installation.model_repo, "refused", dims=dims, config='platform: "onnxruntime_onnx" ' + config)
    with pytest.raises(TritonRefusedError) as refused:
        triton.load("refused")
    assert refused.value.reason.startswith(reason)
    assert str(refused.value).startswith("Triton refused to load refused: ")
    assert "At:" not in refused.value.reason
    assert ".py" not in refused.value.reason


def test_a_refused_change_leaves_the_old_configuration_serving(
    installation: Settings, triton: Triton, publish: Publish
) -> None:
    folder = publish(installation.model_repo, "changed", config=ONNX_CONFIG + "instance_group { count: 1 }")
    triton.load("changed")
    (folder / "config.pbtxt").write_text(ONNX_CONFIG.replace("dims: 4", "dims: 5"))
    with pytest.raises(TritonRefusedError, match=r"making complete shape \[-1,5\]"):
        triton.load("changed")
    assert ask(triton, "changed", [[1, 2, 3, 4]])[0] == 200
    triton.unload("changed")
    assert not triton.model_ready("changed")
    # What is written out in full is not completed: neither batch size nor dynamic batching is added.
    (folder / "config.pbtxt").write_text('platform: "onnxruntime_onnx" ' + IO.replace("dims: 4", "dims: [-1, 4]"))
    triton.load("changed")
    config = triton.config("changed")
    assert (config["max_batch_size"], "dynamic_batching" in config) == (0, False)


# --- ports, death and stopping -------------------------------------------------------------------------------------


def test_taken_ports_are_passed_over_and_said(
    new_installation: Callable[[], Settings], port_base: Callable[[], int]
) -> None:
    settings, base, said = new_installation(), port_base(), []
    with socket.socket() as other:
        other.bind(("127.0.0.1", base + 1))
        other.listen()
        # Two starts at once give one server.
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda _: servers.start(settings, port_base=base, progress=said.append), range(2))
    assert first.pid == second.pid
    assert first.endpoints is not None
    assert first.endpoints.http == f"127.0.0.1:{base + 10}"
    assert any(f"using {base + 10}, {base + 11} and {base + 12}" in message for message in said)
    assert any("running already" in message for message in said)


@pytest.mark.parametrize("lost", ["http", "metrics"])
def test_a_port_that_is_lost_between_the_look_and_the_bind_is_made_up_for(
    new_installation: Callable[[], Settings],
    port_base: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:
    settings, base, free_ports, looked = new_installation(), port_base(), launch.free_ports, []

    def look(first: int) -> tuple[int, int, int]:
        looked.append(first)
        return (first, first + 1, first + 2) if len(looked) == 1 else free_ports(first)

    monkeypatch.setattr(launch, "free_ports", look)
    with socket.socket() as other:
        other.bind(("127.0.0.1", base + ["http", "grpc", "metrics"].index(lost)))
        other.listen()
        status = servers.start(settings, port_base=base)
    assert looked == [base, base + 10]
    assert status.endpoints is not None
    assert status.endpoints.metrics == f"127.0.0.1:{base + 12}"


def test_a_start_that_was_ended_half_way_is_no_dead_end(
    new_installation: Callable[[], Settings], port_base: Callable[[], int]
) -> None:
    settings = new_installation()
    first = servers.start(settings, port_base=port_base())
    known = record.read(settings)
    assert known is not None
    half_way = replace(known, state=ServerState.STARTING)
    record.write(settings, half_way)
    assert servers.status(settings).state is ServerState.STARTING
    record.write(settings, replace(half_way, started_at=known.started_at - 3600))
    assert servers.status(settings).state is ServerState.READY
    record.write(settings, half_way)
    second = servers.start(settings, port_base=port_base())
    assert second.state is ServerState.READY
    assert second.pid != first.pid
    assert first.pid is not None
    assert record.process_start(first.pid) is None


def test_stop_leaves_no_process_no_port_and_no_folder(
    new_installation: Callable[[], Settings], port_base: Callable[[], int], publish: Publish
) -> None:
    settings = new_installation()
    publish(settings.model_repo, "double", config=ONNX_CONFIG)
    status = servers.start(settings, port_base=port_base())
    known = record.read(settings)
    assert known is not None
    assert status.pid is not None
    folder = Path(str(known.folder))
    processes = {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _is_of(path, folder)}
    assert len(processes) == 3  # the server and two instances
    assert list(Path("/dev/shm").glob(f"{folder.name}*"))
    assert servers.stop(settings).state is ServerState.STOPPED
    assert not any(Path(f"/proc/{pid}").exists() and record.process_start(pid) for pid in processes)
    assert not folder.exists()
    assert not list(Path("/dev/shm").glob(f"{folder.name}*"))
    assert not settings.server_file.exists()
    port = int(str(status.endpoints.http).rpartition(":")[2])  # type: ignore[union-attr]
    assert launch.free_ports(port)[0] == port
    assert servers.status(settings).state is ServerState.STOPPED
    assert servers.stop(settings).state is ServerState.STOPPED
    with pytest.raises(ServerDownError, match="Start one with `tritune server start`"):
        servers.connect(settings)


def _is_of(cmdline: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in cmdline.read_bytes()
    except OSError:
        return False


def test_a_killed_server_is_told_and_the_next_start_clears_up(
    new_installation: Callable[[], Settings], port_base: Callable[[], int], publish: Publish
) -> None:
    settings = new_installation()
    publish(settings.model_repo, "double", config=ONNX_CONFIG)
    first = servers.start(settings, port_base=port_base())
    left = Path(str(record.read(settings).folder))  # type: ignore[union-attr]
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    _until(lambda: record.process_start(first.pid or 0) is None)
    status = servers.status(settings)
    assert status.state is ServerState.FAILED
    assert status.reason == f"Triton (pid {first.pid}) ended although nobody stopped it."
    with pytest.raises(ServerDownError, match="ended although nobody stopped it"):
        servers.connect(settings)
    assert left.exists()
    second = servers.start(settings, port_base=port_base())
    assert second.state is ServerState.READY
    assert second.pid != first.pid
    assert not left.exists()
    assert not list(Path("/dev/shm").glob(f"{left.name}*"))


def _until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- setting up ----------------------------------------------------------------------------------------------------


def test_an_interrupted_set_up_is_continued_and_a_failed_one_says_where_its_log_is(
    new_installation: Callable[[], Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pins = replace(new_installation(), root=tmp_path, embedded_env=tmp_path / PATH_FOR_A_SHELL)
    (tmp_path / "requirements-triton.txt").write_text("no-such-package-at-all==1.0\n")
    told: list[str] = []
    for _ in range(2):
        with pytest.raises(ServerError) as failed:
            environment.set_up(pins, told.append)
    assert "No matching distribution found for no-such-package-at-all==1.0" in str(failed.value)
    assert str(pins.results / "setup.log") in str(failed.value)
    assert "make setup" in str(failed.value)
    assert not environment.is_set_up(pins)
    # The second try found a virtual environment that works and made no new one.
    assert sum("virtual environment" in line for line in told) == 1


# --- attached servers ----------------------------------------------------------------------------------------------


def test_an_attached_server_says_what_it_can_do_and_is_let_go_not_stopped(
    triton_server: ServerStatus, new_installation: Callable[[], Settings]
) -> None:
    settings, said = new_installation(), []
    ends = triton_server.endpoints
    assert ends is not None
    assert ends.control is not None
    closed = servers.attach(
        settings, f"http://{ends.http}", metrics=f"http://{ends.metrics}/metrics", progress=said.append
    )
    assert (closed.state, closed.kind, closed.control, closed.statistics) == (
        ServerState.READY,
        ServerKind.REMOTE,
        False,
        True,
    )
    assert said == ["This server does not let models be loaded: tuning is unavailable."]
    with servers.connect(settings) as client:
        assert not client.has_model_control
        assert client.has_statistics
        assert client.has_model_config
        assert client.listens()
        assert (client.metrics() or {})["nv_cpu_memory_total_bytes"] > 0
    opened = servers.attach(settings, ends.http, headers=dict([ends.control]))
    assert opened.control is True
    assert servers.start(settings, progress=said.append).kind is ServerKind.REMOTE
    assert "is attached; `tritune server stop` lets it go" in said[-1]
    with pytest.raises(ServerError, match="attached to, not started"):
        servers.start(settings, ServerKind.REMOTE)
    assert servers.stop(settings).state is ServerState.STOPPED
    with Triton(ends) as client:
        assert client.is_live()
