"""config.pbtxt: reading with errors that help, generating in full, changing, checking by Triton's rules, comparing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tritune import model_config
from tritune.errors import ConfigError, InputError, ServerError
from tritune.model_config import Finding
from tritune.onnx_model import OnnxModel
from tritune.plan import Configuration, TensorSpec, TuneChange

EVERYTHING = """
name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 16
version_policy { all { } }
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_GPU gpus: [ 0 ] } ]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  default_queue_policy { max_queue_size: 64 }
}
optimization { execution_accelerators { gpu_execution_accelerator: [ { name: "tensorrt"
  parameters { key: "precision_mode" value: "FP16" } } ] } }
parameters { key: "intra_op_thread_count" value: { string_value: "4" } }
model_warmup [ { name: "one" batch_size: 1 inputs { key: "x"
  value: { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]
response_cache { enable: true }
"""


def onnx(
    inputs: Sequence[TensorSpec] = (TensorSpec("x", "FP32", (-1, 4)),),
    outputs: Sequence[TensorSpec] = (TensorSpec("y", "FP32", (-1, 4)),),
) -> OnnxModel:
    return OnnxModel(Path("model.onnx"), tuple(inputs), tuple(outputs), 17, 8, "test", {}, "0" * 64, 100)


def text(**replaced: str) -> str:
    """A good config.pbtxt with some lines replaced; "" leaves a line out."""
    lines = {
        "name": 'name: "m"',
        "platform": 'platform: "onnxruntime_onnx"',
        "max_batch_size": "max_batch_size: 16",
        "input": 'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]',
        "output": 'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]',
        "rest": "",
    }
    return "\n".join((lines | replaced).values())


def only(findings: Sequence[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def refusal(config: str, **change: object) -> str:
    with pytest.raises(InputError) as caught:
        model_config.change(model_config.parse(config), TuneChange(**change))  # type: ignore[arg-type]
    return str(caught.value)


class TestReading:
    def test_a_file_with_everything_survives_a_rewrite(self) -> None:
        config = model_config.parse(EVERYTHING)
        assert model_config.parse(config.text) == config
        for word in ("precision_mode", "model_warmup", "max_queue_size: 64", "version_policy", "response_cache"):
            assert word in config.text

    @pytest.mark.parametrize(
        ("wrong", "place", "right"),
        [
            ("batching_option [ { preferred_batch_size: [ 4 ] } ]", "line 2, column 1", "dynamic_batching"),
            ("dynamic_batching { preferred_batch_sizes: [4] }", "line 2, column 20", "Write preferred_batch_size "),
            ("dynamic_batching { max_queue_delay_us: 5 }", "line 2, column 20", "max_queue_delay_microseconds"),
            (
                "dynamic_batching { max_queue_delay_microsecond: 5 }",
                "line 2, column 20",
                "max_queue_delay_microseconds",
            ),
            ("preferred_batch_size: [4]", "line 2, column 1", "inside dynamic_batching"),
            ("count: 2", "line 2, column 1", "inside instance_group"),
            ("  max_batchsize: 8", "line 2, column 3", "max_batch_size"),
            ('input { name: "x" datatype: TYPE_FP32 }', "line 2, column 19", "data_type"),
            ("input { data_type: FP32 }", "line 2, column 20", "TYPE_FP32"),
            ('input { data_type: "TYPE_FP32" }', "line 2, column 20", "TYPE_FP32 without quotes"),
            ("input { data_type: TYPE_FLOAT }", "line 2, column 20", "TYPE_FP32"),
            ("input { data_type: TYPE_BYTES }", "line 2, column 20", "TYPE_STRING"),
            ("instance_group [ { kind: KIND_CPUS } ]", "line 2, column 26", "KIND_CPU"),
            ("max_batch_size: 4\nmax_batch_size: 8", "line 3, column 17", "Keep one max_batch_size"),
            ("dynamic_batching {} sequence_batching {}", "line 2", "Keep either"),
            ("dynamic_batching { max_queue_delay_microseconds: -5 }", "line 2, column 50", "Use 0 or more"),
            ('max_batch_size: "8"', "line 2, column 17", "without quotes"),
            ("platform: onnxruntime_onnx", "line 2, column 11", 'quotes: "onnxruntime_onnx"'),
            ("dynamic_batching {", "line 2", "Close every {"),
            ("zzz: 1", "line 2, column 1", "The fields of ModelConfig are: name"),
        ],
    )
    def test_a_wrong_word_gets_its_place_and_the_right_word(self, wrong: str, place: str, right: str) -> None:
        with pytest.raises(ConfigError) as caught:
            model_config.parse(f'name: "m"\n{wrong}\n')
        assert place in str(caught.value)
        assert right in str(caught.value)

    @pytest.mark.parametrize("text", ['{ "name": "m" }', '\ufeffname: "m"', "name", "\0", "]", "[a.b] {}", "input ["])
    def test_no_text_makes_another_exception(self, text: str) -> None:
        with pytest.raises(ConfigError, match="line 1"):
            model_config.parse(text)

    def test_an_unreadable_text_is_one_finding(self) -> None:
        finding = only(model_config.text_findings("batching_option { }", None, "m"))
        assert finding.code == "unknown_field"
        assert "batching_option" in finding.seen
        assert "dynamic_batching" in finding.fix

    def test_reading_does_not_import_grpc_or_onnx(self) -> None:
        code = (
            "import sys; from tritune import model_config; model_config.parse('name: \"m\"').text;"
            "print([name for name in ('grpc', 'onnx', 'numpy', 'torch') if name in sys.modules])"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert said.stdout.strip() == "[]"

    def test_the_same_message_classes_serve_tritonclient(self) -> None:
        config = model_config.parse(EVERYTHING)
        from tritonclient.grpc import model_config_pb2, service_pb2

        assert isinstance(config.message, model_config_pb2.ModelConfig)
        assert service_pb2.ModelConfigResponse(config=config.message).config.name == "m"


class TestGenerating:
    def test_inputs_and_outputs_are_written_in_full_without_the_batch(self) -> None:
        ids = TensorSpec("ids", "INT64", (-1, -1))
        words = TensorSpec("words", "BYTES", (-1, 3))
        config = model_config.generate(onnx(inputs=(ids, words)), "m")
        assert config.signature.inputs == (TensorSpec("ids", "INT64", (-1,)), TensorSpec("words", "BYTES", (3,)))
        assert config.signature.outputs == (TensorSpec("y", "FP32", (4,)),)
        assert config.configuration == Configuration(model_config.DEFAULT_MAX_BATCH_SIZE, True)
        assert 'platform: "onnxruntime_onnx"' in config.text
        assert not config.message.instance_group

    def test_a_fixed_batch_gives_max_batch_size_0_and_no_batching(self) -> None:
        model = onnx(inputs=(TensorSpec("x", "FP32", (1, 4)),))
        config = model_config.generate(model, "m")
        assert config.configuration == Configuration(0, False)
        assert config.signature.inputs[0].shape == (1, 4)
        assert model_config.findings(config, model, "m") == ()
        with pytest.raises(InputError, match=r"x \[1, 4\].*Re-export.*dynamic batch"):
            model_config.generate(model, "m", 8)

    def test_one_number_a_sample_gets_a_reshape_as_triton_wants(self) -> None:
        model = onnx(outputs=(TensorSpec("score", "FP32", (-1,)),))
        config = model_config.generate(model, "m")
        assert list(config.message.output[0].dims) == [1]
        assert config.message.output[0].HasField("reshape")
        assert model_config.findings(config, model, "m") == ()

    def test_a_scalar_gets_dims_1(self) -> None:
        model = onnx(outputs=(TensorSpec("loss", "FP32", ()),))
        config = model_config.generate(model, "m")
        assert config.signature.outputs[0].shape == (1,)
        assert model_config.findings(config, model, "m") == ()

    def test_a_type_that_triton_does_not_know_is_refused(self) -> None:
        with pytest.raises(InputError, match="COMPLEX64"):
            model_config.generate(onnx(inputs=(TensorSpec("x", "COMPLEX64", (-1, 4)),)), "m")

    def test_completing_writes_out_what_triton_would_add(self) -> None:
        bare = model_config.complete(model_config.parse(""), onnx(), "m")
        assert bare.configuration == Configuration(4, True)
        assert bare.signature.inputs == (TensorSpec("x", "FP32", (4,)),)
        one = model_config.complete(model_config.parse("max_batch_size: 1"), onnx(), "m")
        assert one.configuration == Configuration(1, False)
        full = model_config.parse(EVERYTHING)
        assert model_config.complete(full, onnx(), "m") == full


class TestChanging:
    def test_nothing_asked_changes_nothing(self) -> None:
        config = model_config.parse(EVERYTHING)
        assert model_config.change(config, TuneChange()) == config

    def test_a_change_keeps_every_other_field_and_the_original(self) -> None:
        config = model_config.parse(EVERYTHING)
        before = config.text
        changed = model_config.change(
            config, TuneChange(preferred_batch_size=(2,), max_queue_delay_microseconds=700, max_batch_size=32)
        )
        assert changed.configuration == replace(
            config.configuration, preferred_batch_size=(2,), max_queue_delay_microseconds=700, max_batch_size=32
        )
        removed = [line for line in model_config.diff(before, changed.text).splitlines() if line.startswith("-  ")]
        assert removed == ["-  preferred_batch_size: [4, 8]", "-  max_queue_delay_microseconds: 100"]
        assert config.text == before

    def test_an_instance_count_keeps_kind_and_gpus(self) -> None:
        changed = model_config.change(model_config.parse(EVERYTHING), TuneChange(instance_count=3))
        group = changed.message.instance_group[0]
        assert (group.count, group.kind, list(group.gpus)) == (3, 1, [0])

    def test_a_new_instance_group_leaves_the_kind_to_the_server(self) -> None:
        changed = model_config.change(model_config.parse(text()), TuneChange(instance_count=2))
        assert "kind" not in changed.text
        assert changed.configuration.instance_count == 2

    def test_an_absent_instance_group_stays_absent(self) -> None:
        changed = model_config.change(model_config.parse(text()), TuneChange(max_batch_size=8))
        assert changed.configuration.instance_count is None
        assert "instance_group" not in changed.text

    def test_several_instance_groups_are_not_guessed_at(self) -> None:
        groups = "instance_group [ { count: 1 kind: KIND_CPU }, { count: 2 kind: KIND_GPU } ]"
        assert "2 instance groups (KIND_CPU × 1, KIND_GPU × 2)" in refusal(text(rest=groups), instance_count=2)

    def test_batching_off_removes_the_message_and_a_knob_brings_it_back(self) -> None:
        off = model_config.change(model_config.parse(EVERYTHING), TuneChange(dynamic_batching=False))
        assert "dynamic_batching" not in off.text
        assert off.message.input
        assert off.message.output
        on = model_config.change(off, TuneChange(max_queue_delay_microseconds=0))
        assert on.configuration.dynamic_batching

    def test_batching_off_is_refused_where_auto_complete_would_bring_it_back(self) -> None:
        assert "auto-complete" in refusal("max_batch_size: 4", dynamic_batching=False)

    def test_no_preferred_sizes_removes_them(self) -> None:
        changed = model_config.change(model_config.parse(EVERYTHING), TuneChange(preferred_batch_size=()))
        assert changed.configuration.preferred_batch_size == ()
        assert "preferred_batch_size" not in changed.text

    def test_a_preferred_size_above_the_maximum_names_both(self) -> None:
        said = refusal(EVERYTHING, preferred_batch_size=(4, 999))
        assert "999" in said
        assert "max_batch_size 16" in said

    def test_lowering_the_maximum_below_a_preferred_size_names_both_and_the_fix(self) -> None:
        said = refusal(EVERYTHING, max_batch_size=6)
        assert "max_batch_size 6 is below preferred_batch_size 8" in said
        assert "up to 6" in said
        changed = model_config.change(
            model_config.parse(EVERYTHING), TuneChange(max_batch_size=6, preferred_batch_size=(4,))
        )
        assert changed.configuration.max_batch_size == 6

    def test_a_fixed_batch_is_refused_with_the_reason(self) -> None:
        fixed = model_config.generate(onnx(inputs=(TensorSpec("x", "FP32", (1, 4)),)), "m").text
        said = refusal(fixed, max_batch_size=8)
        assert "x [1, 4]" in said
        assert "Re-export the model with a dynamic batch dimension" in said
        assert "batch dimension" in refusal(fixed, preferred_batch_size=(4,))

    def test_batching_as_such_moves_the_batch_dimension(self) -> None:
        batched = model_config.generate(onnx(outputs=(TensorSpec("y", "FP32", (-1,)),)), "m", 16)
        whole = model_config.change(batched, TuneChange(max_batch_size=0))
        assert whole.configuration == Configuration(0, False)
        assert [list(tensor.dims) for tensor in (*whole.message.input, *whole.message.output)] == [[-1, 4], [-1]]
        again = model_config.change(whole, TuneChange(max_batch_size=16, dynamic_batching=True))
        assert again == batched

    def test_a_warm_up_above_the_new_maximum_is_refused(self) -> None:
        warm = text(rest='model_warmup { name: "big" batch_size: 12 }')
        assert "batch_size 12, above max_batch_size 8" in refusal(warm, max_batch_size=8)

    def test_another_scheduler_is_not_replaced_in_silence(self) -> None:
        said = refusal(text(rest="sequence_batching { }"), max_queue_delay_microseconds=5)
        assert "sequence_batching" in said

    def test_a_fault_that_was_there_before_does_not_block_a_change(self) -> None:
        config = model_config.parse(text(platform='platform: "onnx"'))
        assert model_config.change(config, TuneChange(instance_count=2)).configuration.instance_count == 2


class TestFindings:
    def test_a_generated_configuration_has_none(self) -> None:
        assert model_config.findings(model_config.generate(onnx(), "m"), onnx(), "m") == ()

    @pytest.mark.parametrize(
        ("config", "code", "seen", "fix"),
        [
            (text(name='name: "other"'), "name_mismatch", "other", 'name: "m"'),
            (text(platform='platform: "onnx"'), "platform", "onnx", "onnxruntime_onnx"),
            (text(platform='platform: "tensorrt_plan"'), "platform", "tensorrt_plan", "onnxruntime_onnx"),
            (text(rest='backend: "python"'), "platform", "python", 'backend: "onnxruntime"'),
            (text(max_batch_size="max_batch_size: -1"), "max_batch_size", "-1", "Use 0"),
            (text(rest="dynamic_batching { preferred_batch_size: 0 }"), "preferred_batch_size", "0", "Remove"),
            (text(rest="dynamic_batching { preferred_batch_size: 99 }"), "preferred_batch_size", "99", "up to 16"),
            (text(input='input { name: "input.1" data_type: TYPE_FP32 dims: 4 }'), "tensor_name", "input.1", '"x"'),
            (text(output='output { name: "308" data_type: TYPE_FP32 dims: 4 }'), "tensor_name", "308", '"y"'),
            (text(input='input { name: "x" data_type: TYPE_INT64 dims: 4 }'), "tensor_type", "TYPE_INT64", "FP32"),
            (
                text(input='input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }'),
                "batch_written_twice",
                "[-1, 4]",
                "dims: [4]",
            ),
            (
                text(input='input { name: "x" data_type: TYPE_FP32 dims: [1, 4] }'),
                "batch_written_twice",
                "[1, 4]",
                "dims: [4]",
            ),
            (text(max_batch_size="max_batch_size: 0"), "tensor_dims", "[4]", "dims: [-1, 4]"),
            (text(output='output { name: "y" data_type: TYPE_FP32 dims: -1 }'), "tensor_dims", "[-1]", "dims: [4]"),
            (text(input='input { name: "x" data_type: TYPE_FP32 dims: 5 }'), "tensor_dims", "[5]", "dims: [4]"),
            (text(input='input { name: "x" data_type: TYPE_FP32 dims: 0 }'), "tensor_dims", "dimension 0", "-1"),
            (text(input='input { name: "x" data_type: TYPE_FP32 }'), "tensor_dims", "no dims", "dims"),
            (text(input='input { name: "x" dims: 4 }'), "tensor_type", "no data_type", "data_type"),
            (
                text(input='input { name: "x" data_type: TYPE_FP32 dims: 4 optional: true }'),
                "optional_input",
                "input x",
                "max_batch_size: 0",
            ),
            (
                text(input='input { name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 1, 5 ] } }'),
                "reshape",
                "[1, 5]",
                "Remove reshape",
            ),
            (
                text(rest='model_warmup { name: "big" batch_size: 17 }'),
                "warmup_batch_size",
                "17, above max_batch_size 16",
                "16 or less",
            ),
            (
                text(rest="instance_group { kind: KIND_CPU gpus: [0] }"),
                "instance_group",
                "KIND_CPU",
                "KIND_GPU",
            ),
            (
                text(rest='parameters { key: "intra_op_thread_count" value { string_value: "four" } }'),
                "parameter",
                "four",
                "string_value",
            ),
        ],
    )
    def test_what_triton_refuses_is_named_with_the_right_word(
        self, config: str, code: str, seen: str, fix: str
    ) -> None:
        found = model_config.text_findings(config, onnx(), "m")
        assert found[0].severity == "error"
        named = [finding for finding in found if finding.code == code]
        assert named, found
        assert seen in named[0].seen
        assert fix in named[0].fix

    @pytest.mark.parametrize(
        "config",
        [
            text(max_batch_size="max_batch_size: -1"),
            text(input='input { name: "x" data_type: TYPE_FP32 dims: 0 }'),
            text(input='input { name: "x" data_type: TYPE_FP32 }'),
            text(input='input { name: "x" data_type: TYPE_FP32 dims: [1, 4] }'),
        ],
    )
    def test_one_fault_is_told_once(self, config: str) -> None:
        assert only(model_config.text_findings(config, onnx(), "m")).severity == "error"

    def test_the_nearest_free_name_is_proposed(self) -> None:
        model = onnx(inputs=(TensorSpec("pixels_left", "FP32", (-1, 4)), TensorSpec("pixels_right", "FP32", (-1, 4))))
        good = model_config.generate(model, "m").text
        finding = only(model_config.text_findings(good.replace("pixels_left", "input.1"), model, "m"))
        assert "input.1" in finding.seen
        assert "pixels_left" in finding.fix
        swapped = good.replace("pixels_left", "Pixel_Left").replace("pixels_right", "right")
        assert ["pixels_left" in f.fix for f in model_config.text_findings(swapped, model, "m")] == [True, False]

    def test_a_missing_input_is_named(self) -> None:
        model = onnx(inputs=(TensorSpec("x", "FP32", (-1, 4)), TensorSpec("mask", "INT64", (-1, 4))))
        finding = only(model_config.text_findings(text(), model, "m"))
        assert finding.code == "input_missing"
        assert "mask" in finding.fix

    def test_an_output_may_be_left_out_and_an_input_narrowed(self) -> None:
        model = onnx(
            inputs=(TensorSpec("x", "FP32", (-1, -1)),),
            outputs=(TensorSpec("y", "FP32", (-1, 4)), TensorSpec("z", "FP32", (-1, 4))),
        )
        assert model_config.text_findings(text(), model, "m") == ()

    def test_a_fixed_batch_is_told_once_and_with_the_cure(self) -> None:
        model = onnx(inputs=(TensorSpec("x", "FP32", (1, 4)),), outputs=(TensorSpec("y", "FP32", (1, 4)),))
        finding = only(model_config.text_findings(text(), model, "m"))
        assert finding.code == "fixed_batch"
        assert "x [1, 4], y [1, 4]" in finding.seen
        assert "re-export with a dynamic batch dimension" in finding.fix

    def test_batches_capped_by_a_preferred_size_are_a_warning(self) -> None:
        capped = text(rest="dynamic_batching { preferred_batch_size: [ 4, 8 ] }")
        finding = only(model_config.text_findings(capped, onnx(), "m"))
        assert (finding.code, finding.severity) == ("capped_batches", "warning")
        assert "capped at 8 < 16" in finding.cause
        for free in (
            "preferred_batch_size: [ 8, 16 ]",
            "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 1",
            "",
        ):
            assert model_config.text_findings(text(rest=f"dynamic_batching {{ {free} }}"), onnx(), "m") == ()

    def test_auto_complete_is_a_warning_that_says_what_is_added(self) -> None:
        finding = only(model_config.text_findings(text(input="", output="", max_batch_size=""), onnx(), "m"))
        assert (finding.code, finding.severity) == ("auto_complete", "warning")
        assert "max_batch_size 4 and dynamic_batching" in finding.cause

    def test_a_missing_platform_is_an_error_without_a_model_and_a_warning_with_one(self) -> None:
        config = text(platform="")
        assert only(model_config.text_findings(config, onnx(), "m")).severity == "warning"
        assert only(model_config.text_findings(config, None, "m")).severity == "error"

    def test_another_backends_model_is_not_held_against_the_onnx_file(self) -> None:
        other = text(platform="", input='input { name: "a" data_type: TYPE_FP32 dims: 1 }', rest='backend: "python"')
        assert model_config.text_findings(other, onnx(), "m") == ()

    def test_a_finding_is_a_document(self) -> None:
        finding = Finding("code", "error", "seen", "Cause.", "Fix.")
        assert list(finding.to_dict()) == ["code", "severity", "seen", "cause", "fix"]
        assert finding.sentence() == "seen: Cause. Fix."


class TestDiff:
    def test_layout_and_comments_alone_are_no_change(self) -> None:
        config = "# tuned by hand\n" + EVERYTHING
        assert model_config.diff(config, model_config.parse(config).text) == ""

    def test_lost_comments_are_said(self) -> None:
        before = '# keep me\nname: "a#b" # and me\n'
        after = model_config.change(model_config.parse(before), TuneChange(instance_count=2)).text
        said = model_config.diff(before, after)
        assert "+  count: 2" in said
        assert "2 comments are not kept (# keep me; # and me)" in said

    def test_a_first_file_is_all_new(self) -> None:
        assert '+name: "m"' in model_config.diff("", 'name: "m"\n')


SERVED = {
    "name": "m",
    "platform": "onnxruntime_onnx",
    "backend": "onnxruntime",
    "runtime": "",
    "version_policy": {"latest": {"num_versions": 1}},
    "max_batch_size": 16,
    "input": [
        {
            "name": "x",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": ["4"],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
        }
    ],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4], "label_filename": "", "is_shape_tensor": False}],
    "batch_input": [],
    "batch_output": [],
    "optimization": {
        "priority": "PRIORITY_DEFAULT",
        "input_pinned_memory": {"enable": True},
        "output_pinned_memory": {"enable": True},
        "gather_kernel_buffer_threshold": 0,
        "eager_batching": False,
    },
    "dynamic_batching": {
        "preferred_batch_size": [16],
        "max_queue_delay_microseconds": "700",
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    },
    "instance_group": [
        {
            "name": "m_0",
            "kind": "KIND_CPU",
            "count": 2,
            "gpus": [],
            "secondary_devices": [],
            "profile": [],
            "passive": False,
            "host_policy": "",
        }
    ],
    "default_model_filename": "model.onnx",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
    "a_field_of_a_later_triton": {"x": 1},
}


class TestServed:
    def test_the_served_configuration_reads_flat(self) -> None:
        served = model_config.from_served(SERVED)
        assert served.configuration == Configuration(16, True, (), 700, 2, (("instance_kind", "KIND_CPU"),))
        assert served.signature.inputs == (TensorSpec("x", "FP32", (4,)),)

    def test_what_triton_fills_in_is_no_difference(self) -> None:
        asked = text(rest="dynamic_batching { max_queue_delay_microseconds: 700 }")
        assert model_config.differences(model_config.parse(asked), model_config.from_served(SERVED)) == ()
        explicit = asked.replace("{ max", "{ preferred_batch_size: 16 max") + "\ninstance_group { count: 2 }"
        assert model_config.differences(model_config.parse(explicit), model_config.from_served(SERVED)) == ()

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            (text(), "dynamic_batching: asked off, served on"),
            (text(rest="dynamic_batching { }"), "max_queue_delay_microseconds: asked 0, served 700"),
            (
                text(rest="dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 700 }"),
                "preferred_batch_size: asked [4, 8], served nothing",
            ),
            (
                text(max_batch_size="max_batch_size: 8", rest="dynamic_batching { max_queue_delay_microseconds: 700 }"),
                "max_batch_size: asked 8, served 16",
            ),
            (
                text(rest="dynamic_batching { max_queue_delay_microseconds: 700 } instance_group { count: 3 }"),
                "instance_group: asked 3, served KIND_CPU × 2",
            ),
            (
                text(rest="dynamic_batching { max_queue_delay_microseconds: 700 } version_policy { all { } }"),
                "version_policy",
            ),
            (
                text(
                    rest="dynamic_batching { max_queue_delay_microseconds: 700 } "
                    'parameters { key: "intra_op_thread_count" value { string_value: "2" } }'
                ),
                "parameters",
            ),
        ],
    )
    def test_what_is_served_otherwise_is_said(self, asked: str, said: str) -> None:
        found = model_config.differences(model_config.parse(asked), model_config.from_served(SERVED))
        assert any(said in line for line in found), found

    def test_a_document_that_is_no_configuration_is_a_server_error(self) -> None:
        with pytest.raises(ServerError, match="Triton"):
            model_config.from_served({"max_batch_size": "many"})
