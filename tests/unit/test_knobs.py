"""The further knobs: what is written for each, through the protobuf's text and back; what is refused and why."""

from __future__ import annotations

from typing import Any

import pytest

from tritune import knobs, model_config
from tritune.errors import ConfigError, InputError
from tritune.knobs import KNOBS, Scalar
from tritune.model_config import ModelConfig
from tritune.plan import Configuration, Endpoints, TuneChange
from tritune.triton import Triton

BARE = """
name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }, { name: "ids" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { }
"""
SAMPLES: dict[str, Scalar] = {
    "model_version": 2,
    "intra_op_thread_count": 4,
    "inter_op_thread_count": 2,
    "execution_mode": 1,
    "graph_optimization_level": -1,
    "model_warmup": "1,4,16",
    "timeout_action": "DELAY",
    "default_timeout_microseconds": 100_000,
    "allow_timeout_override": True,
    "max_queue_size": 64,
    "priority_levels": 3,
    "default_priority_level": 2,
    "response_cache": True,
    "instance_kind": "KIND_GPU",
    "instance_gpus": "0,1",
    "gpu_mem_limit": 4_000_000_000,
    "cudnn_conv_algo_search": 1,
    "execution_accelerator": "tensorrt",
    "precision_mode": "FP16",
    "max_workspace_size_bytes": 1_073_741_824,
    "trt_engine_cache_enable": True,
    "trt_engine_cache_path": "/cache",
    "trt_builder_optimization_level": 4,
    "trt_cuda_graph_enable": False,
    "trt_profile_min_shapes": "x:1x1x4",
    "trt_profile_opt_shapes": "x:8x12x4",
    "trt_profile_max_shapes": "x:16x64x4",
    "cudnn_conv_use_max_workspace": False,
    "use_ep_level_unified_stream": True,
}
CUDA = ("cudnn_conv_use_max_workspace", "use_ep_level_unified_stream")
GPU_TEXT = """name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 16
input {
  name: "x"
  data_type: TYPE_FP32
  dims: [-1, 4]
}
input {
  name: "ids"
  data_type: TYPE_STRING
  dims: [1]
}
output {
  name: "y"
  data_type: TYPE_FP32
  dims: [4]
}
optimization {
  execution_accelerators {
    gpu_execution_accelerator {
      name: "tensorrt"
      parameters {
        key: "max_workspace_size_bytes"
        value: "1073741824"
      }
      parameters {
        key: "precision_mode"
        value: "FP16"
      }
      parameters {
        key: "trt_engine_cache_enable"
        value: "1"
      }
      parameters {
        key: "trt_engine_cache_path"
        value: "/cache"
      }
    }
  }
}
dynamic_batching {
}
instance_group {
  kind: KIND_GPU
  count: 2
  gpus: [0, 1]
}
"""


def bare() -> ModelConfig:
    return model_config.parse(BARE)


def changed(**further: Scalar | None) -> ModelConfig:
    return model_config.change(bare(), TuneChange(further=further))


def test_every_knob_has_a_sample_here() -> None:
    assert set(SAMPLES) == set(KNOBS)


def test_what_is_written_reads_back_through_the_text() -> None:
    tensorrt = {name: value for name, value in SAMPLES.items() if name not in CUDA}
    cuda = {name: SAMPLES[name] for name in CUDA} | {"execution_accelerator": "cuda"}
    for further in (tensorrt, cuda):
        config = changed(**further)
        again = model_config.parse(config.text)
        assert again == config
        assert dict(again.configuration.further) == further
        assert Configuration.from_dict(again.configuration.to_dict()) == again.configuration
        assert model_config.differences(config, again) == ()
        assert not [found for found in model_config.findings(again, None, "m") if found.severity == "error"]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_knob_that_is_taken_out_leaves_nothing_behind(name: str) -> None:
    knob = KNOBS[name]
    base = changed(execution_accelerator=knob.engine) if knob.engine else bare()
    message = type(base.message).FromString(base.message.SerializeToString())
    knob.write(message, SAMPLES[name])
    assert message != base.message
    knob.write(message, None)
    assert message == base.message


def test_the_text_for_a_gpu_server_is_the_one_that_nvidia_documents() -> None:
    config = model_config.change(
        bare(),
        TuneChange(
            instance_count=2,
            further={
                "instance_kind": "KIND_GPU",
                "instance_gpus": "0,1",
                "execution_accelerator": "tensorrt",
                "precision_mode": "FP16",
                "max_workspace_size_bytes": 1_073_741_824,
                "trt_engine_cache_enable": True,
                "trt_engine_cache_path": "/cache",
            },
        ),
    )
    assert config == model_config.parse(GPU_TEXT)


def test_a_warm_up_has_one_sample_for_each_size_and_leaves_others_alone() -> None:
    theirs = 'model_warmup [ { name: "theirs" batch_size: 2 inputs { key: "x" value: { dims: [ 3, 4 ] } } } ]'
    config = model_config.change(model_config.parse(BARE + theirs), TuneChange(further={"model_warmup": "1,8"}))
    samples = config.message.model_warmup
    assert [(sample.name, sample.batch_size) for sample in samples] == [
        ("theirs", 2),
        ("tritune_batch_1", 1),
        ("tritune_batch_8", 8),
    ]
    assert list(samples[2].inputs["x"].dims) == [1, 4]
    assert samples[2].inputs["ids"].zero_data
    removed = model_config.change(config, TuneChange(further={"model_warmup": None}))
    assert [sample.name for sample in removed.message.model_warmup] == ["theirs"]


def test_warm_up_samples_follow_the_shapes_of_the_inputs() -> None:
    text = BARE.replace('{ name: "ids" data_type: TYPE_STRING dims: [ 1 ] }', "").replace("4 ] } ,", "4 ] }")
    config = model_config.change(model_config.parse(text.replace("},", "}")), TuneChange(further={"model_warmup": "1"}))
    alone = model_config.change(config, TuneChange(max_batch_size=0))
    assert list(alone.message.input[0].dims) == [-1, -1, 4]
    assert list(alone.message.model_warmup[0].inputs["x"].dims) == [1, 1, 4]


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ({"model_warmup": "1,32"}, r"batch_size 32, above max_batch_size 16.*even crashes"),
        ({"priority_levels": 3}, r"Set default_priority_level"),
        ({"priority_levels": 3, "default_priority_level": 4}, r"in the range 1 to 3"),
        ({"default_priority_level": 1}, r"Set priority_levels to 1 or more as well"),
        ({"precision_mode": "FP16"}, r"precision_mode=FP16 needs execution_accelerator=tensorrt"),
        (
            {"execution_accelerator": "cuda", "precision_mode": "FP16"},
            r"precision_mode=FP16 needs execution_accelerator=tensorrt",
        ),
        ({"execution_accelerator": "tensorrt", "instance_kind": "KIND_CPU"}, r"No instance runs on a GPU"),
        ({"instance_gpus": "0", "instance_kind": "KIND_CPU"}, r"refuses GPUs for KIND_CPU"),
        (
            {"execution_accelerator": "tensorrt", "trt_profile_min_shapes": "x:1x1x4"},
            r"without trt_profile_opt_shapes, trt_profile_max_shapes",
        ),
    ],
)
def test_knobs_that_do_not_go_together_are_refused(further: dict[str, Scalar], said: str) -> None:
    with pytest.raises(InputError, match=said):
        changed(**further)


def test_a_queue_policy_needs_dynamic_batching_and_goes_with_it() -> None:
    with pytest.raises(InputError, match="max_queue_size=5 needs dynamic batching"):
        model_config.change(bare(), TuneChange(dynamic_batching=False, further={"max_queue_size": 5}))
    queued = changed(max_queue_size=5, timeout_action="DELAY", default_timeout_microseconds=100)
    off = model_config.change(queued, TuneChange(dynamic_batching=False))
    assert off.configuration.further == ()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("intra_op_thread_count", -1, "intra_op_thread_count=-1 must be a whole number from 0 to 1024"),
        ("intra_op_thread_count", True, "must be a whole number"),
        ("execution_mode", 2, r"one of 0 \(sequential\), 1 \(parallel\)"),
        ("execution_mode", False, "one of 0"),
        ("precision_mode", "FP8", "one of FP32, FP16, BF16, INT8"),
        ("response_cache", 1, "on or off"),
        ("instance_gpus", "0,0", "different numbers"),
        ("instance_gpus", "gpu0", "such as 0,1"),
        ("model_warmup", "0,1", "from 1 on"),
        ("trt_engine_cache_path", "cache", "an absolute path"),
        ("trt_profile_min_shapes", "1x4", "such as x:1x4"),
        ("precision", "FP16", "There is no knob precision. Did you mean precision_mode?"),
    ],
)
def test_a_value_that_no_server_takes_is_one_sentence(name: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        knobs.check(name, value)
    with pytest.raises(InputError, match=said):
        TuneChange(further={name: value})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("intra_op_thread_count", " 4 ", 4),
        ("execution_mode", "parallel", 1),
        ("execution_mode", "0", 0),
        ("graph_optimization_level", "-1", -1),
        ("graph_optimization_level", "off", 2),
        ("cudnn_conv_algo_search", "default", 2),
        ("precision_mode", "fp16", "FP16"),
        ("instance_kind", "gpu", "KIND_GPU"),
        ("response_cache", "off", False),
        ("model_warmup", "1, 4 16", "1,4,16"),
        ("model_version", "none", None),
        ("execution_accelerator", "none", None),
    ],
)
def test_a_value_is_read_as_people_type_it(name: str, text: str, value: Scalar | None) -> None:
    assert knobs.parse(name, text) == value


@pytest.mark.parametrize("text", ["four", "1.5", "1e3", "٤"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="whole number"):
        knobs.parse("intra_op_thread_count", text)


def test_a_label_says_what_is_set_in_few_words() -> None:
    config = changed(intra_op_thread_count=1, model_version=2, default_timeout_microseconds=1000)
    assert config.configuration.describe() == (
        "batch ≤ 16, no preferred size, delay 0 µs, timeout 1,000 µs, 1 intra-op thread, version 2"
    )
    assert changed(instance_kind="KIND_CPU").configuration.describe() == bare().configuration.describe()
    assert Configuration(1, False, further=(("new", 3),)).describe() == "batch ≤ 1, no dynamic batching, new 3"


@pytest.mark.parametrize(
    ("text", "code", "severity"),
    [
        ("response_cache { enable: true }", "response_cache", "warning"),
        (
            _gpu := 'optimization { execution_accelerators { gpu_execution_accelerator [ { name: "trt" } ] } }',
            *("accelerator", "error"),
        ),
        (_gpu.replace("trt", "tensorrt"), "needs_gpu", "info"),
        (_gpu.replace("gpu", "cpu"), "accelerator", "error"),
        (
            _gpu.replace('"trt"', '"tensorrt" parameters { key: "precision_mode" value: "half" }'),
            "accelerator_parameter",
            "error",
        ),
        (
            _gpu.replace('"trt"', '"tensorrt" parameters { key: "trt_engine_cache" value: "1" }'),
            "accelerator_parameter",
            "error",
        ),
        (
            _gpu.replace('"trt"', '"tensorrt" parameters { key: "trt_engine_cache_enable" value: "true" }'),
            "engine_cache",
            "warning",
        ),
        ('parameters { key: "inter_op_thread_count" value { string_value: "2" } }', "inter_op_threads", "warning"),
        ("instance_group { kind: KIND_CPU } " + _gpu.replace("trt", "cuda"), "accelerator_ignored", "warning"),
    ],
)
def test_what_a_hand_wrote_is_judged_too(text: str, code: str, severity: str) -> None:
    found = {(finding.code, finding.severity) for finding in model_config.text_findings(BARE + text, None, "m")}
    assert (code, severity) in found


def test_a_delay_action_without_a_timeout_has_no_effect_and_says_so() -> None:
    config = changed(timeout_action="DELAY")
    assert "queue_timeout" in {finding.code for finding in model_config.findings(config, None, "m")}


def test_what_triton_fills_in_is_no_difference() -> None:
    asked = changed(instance_kind="KIND_GPU", instance_gpus="0", model_version=2)
    served = model_config.parse(asked.text.replace("kind: KIND_GPU", 'name: "m_0" count: 1 kind: KIND_GPU'))
    assert model_config.differences(asked, served) == ()
    everywhere = model_config.parse(served.text.replace("gpus: [0]", "gpus: [0, 1]"))
    assert model_config.differences(asked, everywhere) == ("instance_group: asked gpus [0], served gpus [0, 1]",)
    assert model_config.differences(changed(instance_kind="KIND_GPU"), everywhere)[-1:] != ()
    cpu = model_config.parse(BARE + 'instance_group { name: "m" count: 2 kind: KIND_CPU }')
    assert "KIND_GPU" in model_config.differences(changed(instance_kind="KIND_GPU"), cpu)[0]


def test_a_served_version_is_judged_by_what_is_loaded() -> None:
    old, latest = changed(model_version=2), bare()
    assert model_config.differences(latest, old) != ()
    assert model_config.differences(latest, old, (2,)) == ()
    assert model_config.differences(old, latest, (2,)) == ()
    assert model_config.differences(old, latest, (1,)) == (
        "version_policy: asked version_policy { specific { versions: [2] } }, served version 1",
    )
    assert model_config.differences(latest, old, (1, 2)) != ()


class Metered(Triton):
    """A server that reports these metrics and one served model."""

    samples: dict[str, float] | None = None
    kind = "KIND_CPU"

    def metrics(self) -> dict[str, float] | None:
        return self.samples

    def index(self) -> list[dict[str, Any]]:
        return [{"name": "m", "state": "READY"}, {"name": "other", "state": "UNAVAILABLE"}]

    def config(self, name: str) -> dict[str, Any]:
        return {"instance_group": [{"kind": self.kind}]}


@pytest.mark.parametrize(
    ("samples", "kind", "has_gpu"),
    [
        ({'nv_gpu_utilization{gpu_uuid="GPU-1"}': 0.0}, "KIND_CPU", True),
        ({"nv_cpu_utilization": 0.1}, "KIND_CPU", False),
        ({"nv_cpu_utilization": 0.1}, "KIND_GPU", True),
        (None, "KIND_CPU", None),
    ],
)
def test_whether_a_server_has_a_gpu(samples: dict[str, float] | None, kind: str, has_gpu: bool | None) -> None:
    server = Metered(Endpoints("127.0.0.1:1"))
    type(server).samples, type(server).kind = samples, kind
    assert server.has_gpu() is has_gpu


def test_a_text_that_cannot_be_a_configuration_still_names_the_field() -> None:
    with pytest.raises(ConfigError, match="optimization"):
        model_config.parse(BARE + "execution_accelerators { }")
