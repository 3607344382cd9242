"""What the doctor says of a machine, a model repository and a server, and what its buttons do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tritune import servers
from tritune.doctor import Report, of_machine, of_repository, of_server, remedies
from tritune.doctor.diagnosis import Diagnosis
from tritune.doctor.of_machine import Docker, Gpu, Machine, Port
from tritune.errors import InputError
from tritune.plan import Endpoints, JobKind
from tritune.repository import ModelRepository
from tritune.servers import ServerKind, ServerState, ServerStatus
from tritune.settings import Settings

GOOD = """name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [4] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [4] } ]
dynamic_batching { }
"""


def codes(report: Report, severity: str | None = None) -> list[str]:
    return [one.finding.code for one in report.findings if severity in (None, one.finding.severity)]


# --- the machine -----------------------------------------------------------------------------------------------------

HEALTHY = Machine(
    unsupported=None,
    is_set_up=True,
    docker=Docker("27.1", toolkit=True),
    gpus=(Gpu("NVIDIA L4", "560.35.03", 8.9),),
    smi_error="",
    ports=(Port(8000), Port(8001), Port(8002)),
    shm_free=1 << 30,
    disks=(("/data", 50 << 30),),
    perf_analyzer="/usr/bin/perf_analyzer",
    perf_analyzer_error="",
    image="nvcr.io/nvidia/tritonserver:24.06-py3",
    kind=None,
)
OLD_GPU = (Gpu("Tesla P100", "560.35.03", 6.0),)


def test_a_healthy_machine_has_no_finding_and_says_what_was_looked_at() -> None:
    report = of_machine.judge(HEALTHY)
    assert report.findings == ()
    seen = {checked.what for checked in report.checked}
    assert {"Docker", "NVIDIA container toolkit", "GPU", "Ports", "Shared memory", "Disk", "perf_analyzer"} <= seen


def test_without_docker_and_gpu_nothing_is_wrong_because_the_embedded_triton_needs_neither() -> None:
    report = of_machine.judge(replace(HEALTHY, docker=None, gpus=()))
    assert codes(report) == ["docker_missing"]
    assert report.findings[0].finding.severity == "info"
    assert codes(of_machine.judge(replace(HEALTHY, docker=None, kind=ServerKind.DOCKER)), "error") == ["docker_missing"]


def test_a_gpu_without_the_toolkit_is_told_before_a_container_is_started() -> None:
    (found,) = of_machine.judge(replace(HEALTHY, docker=Docker("27.1"))).findings
    assert found.finding.code == "toolkit_missing"
    assert "NVIDIA L4" in found.finding.seen


@pytest.mark.parametrize(
    ("driver", "tag", "code"),
    [
        ("560.35.03", "24.06", None),
        ("535.183.01", "24.06", "driver_limited"),
        ("470.57.02", "24.06", "driver_old"),
        ("560.35.03", "26.02", "driver_old"),
        ("610.43.02", "26.02", None),
        ("unknown", "24.06", None),
    ],
)
def test_the_driver_is_held_against_the_image_in_bands(driver: str, tag: str, code: str | None) -> None:
    image = f"nvcr.io/nvidia/tritonserver:{tag}-py3"
    report = of_machine.judge(replace(HEALTHY, gpus=(Gpu("NVIDIA L4", driver, 8.9),), image=image))
    assert codes(report) == ([code] if code else [])
    assert not report.errors


@pytest.mark.parametrize(("tag", "wrong"), [("25.02", False), ("25.03", True)])
def test_an_old_gpu_is_held_against_the_image(tag: str, wrong: bool) -> None:
    image = f"nvcr.io/nvidia/tritonserver:{tag}-py3"
    assert codes(of_machine.judge(replace(HEALTHY, gpus=OLD_GPU, image=image))) == ["gpu_too_old"] * wrong


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"smi_error": "NVIDIA-SMI has failed", "gpus": ()}, "driver_fault", "warning"),
        ({"docker": Docker(error="Docker is not running: nothing answers. Start it.")}, "docker_down", "warning"),
        ({"docker": Docker(error="You may not use Docker: permission denied. Join.")}, "docker_permission", "warning"),
        ({"docker": Docker("27", toolkit=True, from_snap=True)}, "docker_snap", "warning"),
        ({"ports": (Port(8000, "Triton answers there"),)}, "port_taken", "info"),
        ({"ports": (Port(8001, "another program listens there"),)}, "port_taken", "info"),
        ({"shm_free": 10 << 20}, "small_shm", "warning"),
        ({"disks": (("/data", 500 << 20),)}, "disk", "warning"),
        ({"disks": (("/data", 50 << 20),)}, "disk", "error"),
        ({"is_set_up": False}, "not_set_up", "info"),
        ({"unsupported": "The embedded Triton needs x86-64 Linux. Attach."}, "machine_unsupported", "error"),
        ({"perf_analyzer": "", "perf_analyzer_error": "No usable perf_analyzer was found"}, "perf_analyzer", "info"),
    ],
)
def test_each_fault_of_a_machine_is_one_finding(change: dict[str, Any], code: str, severity: str) -> None:
    (found,) = of_machine.judge(replace(HEALTHY, **change)).findings
    assert (found.finding.code, found.finding.severity) == (code, severity)
    assert all((found.finding.seen, found.finding.cause, found.finding.fix))


def test_gpus_are_read_from_nvidia_smi_also_where_it_is_old_or_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def says(script: str) -> tuple[tuple[Gpu, ...], str]:
        smi.write_text(f"#!/bin/sh\n{script}\n")
        smi.chmod(0o755)
        return of_machine._gpus()

    gpus, error = says('echo "NVIDIA L4, 550.54.15, 8.9"; echo "NVIDIA A2, 550.54.15, 8.6"')
    assert ([gpu.capability for gpu in gpus], error) == ([8.9, 8.6], "")
    old = 'case "$*" in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field"; exit 2;; esac'
    gpus, error = says(old + '; echo "Tesla K80, 470.57.02"')
    assert (gpus, error) == ((Gpu("Tesla K80", "470.57.02", None),), "")
    broken = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert says(f'echo "{broken}"; exit 9') == ((), broken)


def test_looking_at_this_machine_takes_seconds_and_raises_nothing(settings: Settings) -> None:
    assert of_machine.judge(of_machine.look(settings)).checked


# --- the repository and what its buttons do --------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ours = Settings.from_env({})
    return replace(ours, model_repo=tmp_path / "models", results=tmp_path / "results")


def save(path: Path, dims: list[int | str]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


Make = Callable[..., Path]


@pytest.fixture
def make(settings: Settings) -> Make:
    """Write model `m` with a configuration; returns its folder."""

    def written(config: str | None = GOOD, *, dims: list[int | str] | None = None) -> Path:
        folder = settings.model_repo / "m"
        save(folder / "1" / "model.onnx", ["n", 4] if dims is None else dims)
        if config is not None:
            (folder / "config.pbtxt").write_text(config)
        return folder

    return written


def find(settings: Settings, code: str) -> Diagnosis:
    report = of_repository.diagnose(settings)
    return next(one for one in report.findings if one.finding.code == code)


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def done_and_undone(settings: Settings, code: str) -> str:
    """Do what the finding's button does, see that the finding is gone, undo it, see that all is as before."""
    repository = ModelRepository(settings.model_repo)
    one = find(settings, code)
    assert one.remedy is not None, one
    before = snapshot(settings.model_repo)
    errors = of_repository.diagnose(settings).errors
    remedies.apply(settings, repository, one.model, one.remedy)
    after = of_repository.diagnose(settings)
    assert (code, one.finding.seen) not in {(left.finding.code, left.finding.seen) for left in after.findings}
    assert after.errors <= errors
    (entry,) = remedies.done(settings)
    remedies.undo(repository, entry)
    assert snapshot(settings.model_repo) == before
    assert remedies.done(settings) == ()
    return one.remedy.label


def test_a_sound_repository_is_in_order(settings: Settings, make: Make) -> None:
    make()
    report = of_repository.diagnose(settings)
    assert report.findings == ()
    assert [checked.what for checked in report.checked] == ["m"]


def test_an_empty_repository_offers_the_built_in_model(settings: Settings) -> None:
    one = find(settings, "no_model")
    assert one.remedy is not None
    assert one.remedy.job is not None
    assert one.remedy.job.kind is JobKind.MODEL_BUILD


@pytest.mark.parametrize(
    ("code", "wrong", "right"),
    [
        ("unknown_field", "batching_option", "dynamic_batching"),
        ("unknown_field", "max_batch", "max_batch_size"),
        ("unknown_value", "TYPE_FLOAT32", "TYPE_FP32"),
    ],
)
def test_a_wrong_word_is_replaced_where_it_stands(
    settings: Settings, make: Make, code: str, wrong: str, right: str
) -> None:
    make(GOOD.replace(right, wrong, 1))
    assert right in done_and_undone(settings, code)


def test_a_list_around_a_field_that_stands_once_goes_with_its_wrong_word(settings: Settings, make: Make) -> None:
    make(GOOD.replace("dynamic_batching { }", "batching_option [ { preferred_batch_size: [ 4 ] } ]"))
    remedy = find(settings, "unknown_field").remedy
    assert remedy is not None
    assert "dynamic_batching" in remedy.steps[0].text
    assert "batching_option" in remedy.preview
    done_and_undone(settings, "unknown_field")


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("tensor_name", '"x"', '"input.1"'),
        ("tensor_type", "TYPE_FP32", "TYPE_INT64"),
        ("tensor_dims", "dims: [4]", "dims: [5]"),
        ("batch_written_twice", "dims: [4]", "dims: [-1, 4]"),
        ("name_mismatch", 'name: "m"', 'name: "n"'),
        ("platform", "onnxruntime_onnx", "onnx"),
        ("preferred_batch_size", "{ }", "{ preferred_batch_size: [4, 16] }"),
        ("capped_batches", "{ }", "{ preferred_batch_size: [4] }"),
        ("auto_complete", 'input [ { name: "x" data_type: TYPE_FP32 dims: [4] } ]', ""),
        ("instance_group", "dynamic_batching { }", "instance_group [ { kind: KIND_CPU gpus: [0] } ]"),
    ],
)
def test_a_wrong_configuration_is_mended_and_put_back(
    settings: Settings, make: Make, code: str, old: str, new: str
) -> None:
    make(GOOD.replace(old, new, 1))
    assert done_and_undone(settings, code)


def test_batching_is_switched_off_for_a_fixed_batch(settings: Settings, make: Make) -> None:
    make(dims=[1, 4])
    remedy = find(settings, "fixed_batch").remedy
    assert remedy is not None
    assert "max_batch_size 0" in remedy.label
    assert "dims: [1, 4]" in remedy.steps[0].text
    done_and_undone(settings, "fixed_batch")


def test_mending_keeps_every_other_field(settings: Settings, make: Make) -> None:
    make(GOOD.replace('"x"', '"input.1"') + 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }')
    remedy = find(settings, "tensor_name").remedy
    assert remedy is not None
    assert "intra_op_thread_count" in remedy.steps[0].text
    assert "max_batch_size: 8" in remedy.steps[0].text


def test_a_missing_configuration_is_written_in_full(settings: Settings, make: Make) -> None:
    make(None)
    done_and_undone(settings, "no_config")


@pytest.mark.parametrize(
    ("code", "place", "changed"),
    [
        ("config_place", "1/config.pbtxt", "config.pbtxt"),
        ("config_name", "config.txt", "config.pbtxt"),
        ("version_name", "01/model.onnx", None),
        ("model_place", "model.onnx", None),
        ("model_file", "1/net.onnx", "1/model.onnx"),
        ("editor_file", ".config.pbtxt.swp", None),
    ],
)
def test_what_lies_in_the_wrong_place_is_moved_and_put_back(
    settings: Settings, make: Make, code: str, place: str, changed: str | None
) -> None:
    folder = make()
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    if changed is None:
        path.write_bytes((folder / "1" / "model.onnx").read_bytes())
    else:
        (folder / changed).rename(path)
    done_and_undone(settings, code)


def test_nothing_is_deleted_and_two_files_of_one_name_are_both_kept(settings: Settings, make: Make) -> None:
    folder = make()
    repository = ModelRepository(settings.model_repo)
    for content in ("a", "b"):
        (folder / "config.pbtxt~").write_text(content)
        one = find(settings, "editor_file")
        assert one.remedy is not None
        remedies.apply(settings, repository, "m", one.remedy)
    kept = sorted(path.read_text() for path in (settings.results / "doctor" / "set aside").iterdir())
    assert kept == ["a", "b"]
    newest, older = remedies.done(settings)
    remedies.undo(repository, newest)
    with pytest.raises(InputError, match="there again"):
        remedies.undo(repository, older)


def test_undo_never_loses_a_later_change(settings: Settings, make: Make) -> None:
    folder = make(GOOD.replace('"x"', '"input.1"'))
    repository = ModelRepository(settings.model_repo)
    one = find(settings, "tensor_name")
    assert one.remedy is not None
    remedies.apply(settings, repository, "m", one.remedy)
    (folder / "config.pbtxt").write_text(GOOD.replace("8", "16"))
    (entry,) = remedies.done(settings)
    with pytest.raises(InputError, match="changed after"):
        remedies.undo(repository, entry)
    assert "16" in (folder / "config.pbtxt").read_text()


def test_a_syntax_that_only_a_person_can_mend_has_no_button(settings: Settings, make: Make) -> None:
    make(GOOD + "}")
    assert find(settings, "syntax").remedy is None


def test_a_model_given_as_repository_a_loose_file_and_a_nested_model_are_found(settings: Settings, make: Make) -> None:
    folder = make()
    save(folder / "inner" / "1" / "model.onnx", ["n", 4])
    save(settings.model_repo / "loose.onnx", ["n", 4])
    assert {"nested", "model_outside"} <= set(codes(of_repository.diagnose(settings)))
    wrong = replace(settings, model_repo=folder)
    one = find(wrong, "repository_is_model")
    assert str(settings.model_repo) in one.finding.fix


def test_a_folder_whose_name_a_shell_would_run_can_be_renamed(settings: Settings) -> None:
    save(settings.model_repo / "my $(model)" / "1" / "model.onnx", ["n", 4])
    label = done_and_undone(settings, "model_name")
    assert label == "Move it to my_model_"


# --- the server ------------------------------------------------------------------------------------------------------


class FakeTriton:
    """A server whose answers are attributes."""

    def __init__(self, **answers: Any) -> None:
        self.endpoints = Endpoints("127.0.0.1:8000", None, "127.0.0.1:8002")
        self.has_model_control = self.has_statistics = self.has_model_config = True
        self.rows: list[dict[str, Any]] = []
        self.served: dict[str, Any] = {}
        self.samples: dict[str, float] | None = {"nv_gpu_utilization{}": 0.1}
        self.counters: Any = None
        for name, value in answers.items():
            setattr(self, name, value)

    def __enter__(self) -> FakeTriton:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def index(self) -> list[dict[str, Any]]:
        return self.rows

    def metrics(self) -> dict[str, float] | None:
        return self.samples

    def config(self, name: str) -> dict[str, Any]:
        return self.served

    def statistics(self, name: str) -> Any:
        return self.counters


class Counters:
    def __init__(self, inferences: int, executions: int) -> None:
        self.inference_count, self.execution_count = inferences, executions


Ask = Callable[..., Report]


@pytest.fixture
def ask(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """The findings about a server that answers so."""

    def asked(**answers: Any) -> Report:
        status = ServerStatus(ServerState.READY, ServerKind.EMBEDDED, control=answers.pop("control", True))
        monkeypatch.setattr(servers, "status", lambda settings: status)
        monkeypatch.setattr(servers, "connect", lambda settings: FakeTriton(**answers))
        return of_server.diagnose(settings)

    return asked


SERVED = {
    "name": "m",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
    "dynamic_batching": {"preferred_batch_size": [8]},
}
READY = [{"name": "m", "version": "1", "state": "READY", "reason": ""}]


def test_a_server_that_serves_what_is_written_is_in_order(ask: Ask, make: Make) -> None:
    make()
    report = ask(rows=READY, served=SERVED, counters=Counters(1000, 300))
    assert report.findings == ()
    assert "serves what is written" in {checked.seen for checked in report.checked}


def test_what_is_served_otherwise_than_written_can_be_loaded_again(ask: Ask, make: Make) -> None:
    make(GOOD.replace("max_batch_size: 8", "max_batch_size: 16"))
    (found,) = ask(rows=READY, served=SERVED, counters=Counters(0, 0)).findings
    assert found.finding.code == "not_in_effect"
    assert "16" in found.finding.seen
    assert found.remedy is not None
    assert found.remedy.job is not None
    assert found.remedy.job.kind is JobKind.LOAD_MODEL
    assert found.remedy.job.undo_kind is None


def test_a_model_that_is_not_loaded_can_be_and_that_can_be_undone(ask: Ask, make: Make) -> None:
    make()
    (found,) = ask(rows=[{"name": "m"}]).findings
    assert found.finding.code == "not_loaded"
    assert found.remedy is not None
    assert found.remedy.job is not None
    assert (found.remedy.job.kind, found.remedy.job.undo_kind) == (JobKind.LOAD_MODEL, JobKind.UNLOAD_MODEL)


def test_a_refused_model_is_told_with_what_its_reason_means(ask: Ask, make: Make) -> None:
    make()
    reason = "Invalid argument: unexpected inference output 'z', allowed outputs are: y"
    (found,) = ask(rows=[{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": reason}]).findings
    assert (found.finding.code, found.finding.severity, found.model) == ("tensor_name", "error", "m")
    assert "y" in found.finding.fix
    (found,) = ask(rows=[{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "strange"}]).findings
    assert (found.finding.code, found.finding.severity) == ("refused", "error")
    assert "strange" in found.finding.seen


def test_a_newer_version_that_is_not_served_is_told(ask: Ask, make: Make) -> None:
    save(make() / "2" / "model.onnx", ["n", 4])
    assert codes(ask(rows=READY, served=SERVED, counters=Counters(0, 0))) == ["older_served"]


def test_a_batcher_that_never_merged_is_told_and_a_few_requests_are_not(ask: Ask, make: Make) -> None:
    make()
    assert codes(ask(rows=READY, served=SERVED, counters=Counters(5000, 5000))) == ["never_batched"]
    assert codes(ask(rows=READY, served=SERVED, counters=Counters(50, 50))) == []


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"control": False}, "control_mode"),
        ({"has_model_control": False}, "control_mode"),
        ({"has_statistics": False}, "no_statistics"),
        ({"has_model_config": False}, "no_model_config"),
        ({"samples": None}, "no_metrics"),
    ],
)
def test_what_a_server_cannot_do_is_a_warning(ask: Ask, answers: dict[str, Any], code: str) -> None:
    report = ask(**answers)
    assert codes(report) == [code]
    assert not report.errors


def test_a_server_that_failed_is_told_with_its_logs_reason(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    status = ServerStatus(ServerState.FAILED, ServerKind.EMBEDDED, reason="Triton (pid 7) ended")
    monkeypatch.setattr(servers, "status", lambda settings: status)
    line = "failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use"
    monkeypatch.setattr(servers, "logs", lambda settings, lines: line)
    assert codes(of_server.diagnose(settings)) == ["server_failed", "port_taken"]


def test_a_server_that_is_stopped_is_no_fault(settings: Settings) -> None:
    report = of_server.diagnose(settings)
    assert codes(report, "info") == ["server_stopped"]
    assert not report.errors


def test_findings_are_documents_and_errors_come_first(ask: Ask, make: Make) -> None:
    make()
    report = ask(rows=[{"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "x"}], samples=None)
    ranks = [("error", "warning", "info").index(one.finding.severity) for one in report.findings]
    assert all(first <= second for first, second in itertools.pairwise(ranks))
    for one in report.findings:
        assert {"code", "severity", "seen", "cause", "fix"} <= set(one.to_dict())
