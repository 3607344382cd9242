"""The text of a config.pbtxt: read and written by Triton's own protobuf, with errors that name the right word.

Belongs here: text to message, message to text, and the explanation of what cannot be read. Never: rules about what a
readable configuration says (model_rules), files.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tritune.errors import TrituneError
from tritune.model_rules import Finding, nearest

# Words that tutorials, other tools and older habits use -> (the right word, how it is written).
_FOLKLORE = {
    "batching_option": ("dynamic_batching", "dynamic_batching { preferred_batch_size: [4, 8] }"),
    "batching_options": ("dynamic_batching", "dynamic_batching { preferred_batch_size: [4, 8] }"),
    "batching": ("dynamic_batching", "dynamic_batching { }"),
    "dynamic_batcher": ("dynamic_batching", "dynamic_batching { }"),
    "batch_size": ("max_batch_size", "max_batch_size: 8"),
    "max_batch": ("max_batch_size", "max_batch_size: 8"),
    "preferred_batch_sizes": ("preferred_batch_size", "preferred_batch_size: [4, 8]"),
    "preferred_batches": ("preferred_batch_size", "preferred_batch_size: [4, 8]"),
    "max_queue_delay": ("max_queue_delay_microseconds", "max_queue_delay_microseconds: 100"),
    "max_queue_delay_us": ("max_queue_delay_microseconds", "max_queue_delay_microseconds: 100"),
    "max_queue_delay_ms": ("max_queue_delay_microseconds", "max_queue_delay_microseconds: 1000 (for 1 ms)"),
    "queue_delay": ("max_queue_delay_microseconds", "max_queue_delay_microseconds: 100"),
    "inputs": ("input", 'input [ { name: "x" data_type: TYPE_FP32 dims: [4] } ]'),
    "outputs": ("output", 'output [ { name: "y" data_type: TYPE_FP32 dims: [4] } ]'),
    "datatype": ("data_type", "data_type: TYPE_FP32"),
    "dtype": ("data_type", "data_type: TYPE_FP32"),
    "type": ("data_type", "data_type: TYPE_FP32"),
    "shape": ("dims", "dims: [3, 224, 224]"),
    "instances": ("instance_group", "instance_group [ { count: 2 } ]"),
    "instance_count": ("instance_group", "instance_group [ { count: 2 } ]"),
    "instance_groups": ("instance_group", "instance_group [ { count: 2 } ]"),
    "optimisation": ("optimization", "optimization { }"),
    "warmup": ("model_warmup", "model_warmup [ { ... } ]"),
    "versions_policy": ("version_policy", "version_policy { latest { num_versions: 1 } }"),
    "model_name": ("name", 'name: "my_model"'),
    "model_filename": ("default_model_filename", 'default_model_filename: "model.onnx"'),
}
_TYPES = {
    "FLOAT": "FP32",
    "FLOAT32": "FP32",
    "FLOAT16": "FP16",
    "HALF": "FP16",
    "FLOAT64": "FP64",
    "DOUBLE": "FP64",
    "BFLOAT16": "BF16",
    "INT": "INT32",
    "LONG": "INT64",
    "BYTES": "STRING",
    "STR": "STRING",
    "BOOLEAN": "BOOL",
}
# Where a field that stands at the wrong level belongs; the first message that has it is taken.
_LEVELS = (
    ("dynamic_batching", "inference.ModelDynamicBatching"),
    ("input or output", "inference.ModelInput"),
    ("instance_group", "inference.ModelInstanceGroup"),
    ("dynamic_batching.default_queue_policy", "inference.ModelQueuePolicy"),
    ("sequence_batching", "inference.ModelSequenceBatching"),
    ("optimization", "inference.ModelOptimizationPolicy"),
    ("optimization.execution_accelerators", "inference.ModelOptimizationPolicy.ExecutionAccelerators"),
    ("model_warmup", "inference.ModelWarmup"),
    ("the model itself (the outermost level)", "inference.ModelConfig"),
)


@functools.cache
def protobuf() -> ModuleType:
    """Triton's generated `model_config_pb2`.

    Loaded by its file, because importing it by name runs `tritonclient.grpc`, which imports grpc: 190 ms instead of
    21 ms. Both ways give the same message classes. Raises TrituneError where tritonclient is not installed.
    """
    name = "tritonclient.grpc.model_config_pb2"
    if name in sys.modules:
        return sys.modules[name]
    package = importlib.util.find_spec("tritonclient")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(folder) / "grpc" / "model_config_pb2.py"
        spec = importlib.util.spec_from_file_location("tritune_model_config_pb2", path) if path.is_file() else None
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise TrituneError(
        "Triton's model_config protobuf was not found: tritonclient[grpc] is missing. "
        "Install it with `pip install -r requirements.txt`."
    )


def read(text: str) -> Any | Finding:
    """The `ModelConfig` message of a config.pbtxt, or the finding that says what is wrong where."""
    from google.protobuf import text_format

    message = protobuf().ModelConfig()
    if text.startswith("\ufeff"):
        return Finding(
            "syntax",
            "error",
            "line 1, column 1: a byte-order mark",
            "The file begins with an invisible mark that Triton cannot read.",
            "Save the file as UTF-8 without a byte-order mark (BOM).",
        )
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        return _explain(text, error, message.DESCRIPTOR.file.pool)
    return message


def write(message: Any) -> str:
    """The canonical text of a message: fields in the protobuf's order, short lists, UTF-8, maps sorted by key."""
    from google.protobuf import text_format

    return str(text_format.MessageToString(message, use_short_repeated_primitives=True, as_utf8=True))


def comments(text: str) -> tuple[str, ...]:
    """The comments of a config.pbtxt, which a rewrite by protobuf does not keep."""
    token = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*')
    return tuple(match.group().strip() for match in token.finditer(text) if match.group().startswith("#"))


def _explain(text: str, error: Any, pool: Any) -> Finding:
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    where = f"line {line}, column {column}"
    lines = text.splitlines()
    rest = lines[line - 1][column - 1 :] if line <= len(lines) else ""
    said = re.sub(r"^\d+:\d+ : ", "", str(error))
    unknown = re.search(r'Message type "([\w.]+)" has no field named "([^"]+)"', said)
    if unknown:
        return _unknown_field(where, unknown[1], unknown[2], pool)
    value = re.search(r'Enum type "([\w.]+)" has no value named "?([^"]*?)"?\.$', said)
    if value:
        return _unknown_value(where, value[1], value[2], rest, pool)
    said = re.sub(r"^'.*': ", "", said, flags=re.DOTALL)
    seen = f"{where}: {rest.strip()[:60]}" if rest.strip() else f"{where}: the end of the line"
    return Finding("syntax", "error", seen, f"Triton cannot read this: {said.rstrip('.')}.", _advice(said, rest, text))


def _unknown_field(where: str, message_name: str, field: str, pool: Any) -> Finding:
    short = message_name.removeprefix("inference.")
    fields = [entry.name for entry in pool.FindMessageTypeByName(message_name).fields]
    right, example = _FOLKLORE.get(field, (None, ""))
    if right in fields:
        fix = f"Write {right} instead of {field}: {example}."
    elif (level := _level(right or field, message_name, pool)) is not None:
        fix = f"{right or field} belongs inside {level}; move it there."
    elif (guess := nearest(field, fields)) is not None:
        fix = f"Write {guess} instead of {field}."
    else:
        fix = f"Remove it. The fields of {short} are: {', '.join(fields)}."
    cause = f"Triton knows no field {field} in {short}, so it cannot read the file and does not load the model."
    return Finding("unknown_field", "error", f"{where}: {field}", cause, fix)


def _level(field: str, message_name: str, pool: Any) -> str | None:
    for level, candidate in _LEVELS:
        if candidate != message_name and field in pool.FindMessageTypeByName(candidate).fields_by_name:
            return level
    return None


def _unknown_value(where: str, enum_type: str, value: str, rest: str, pool: Any) -> Finding:
    names = [entry.name for entry in pool.FindEnumTypeByName(enum_type).values if entry.name != "TYPE_INVALID"]
    prefix = names[0].split("_")[0] + "_"
    bare = value.upper().removeprefix(prefix)
    bare = _TYPES.get(bare, bare) if prefix == "TYPE_" else bare
    close = [prefix + bare] if prefix + bare in names else difflib.get_close_matches(prefix + bare, names, n=1)
    fix = f"Write {close[0]}" + (" without quotes." if rest[:1] in "\"'" else ".") if close else ""
    return Finding(
        "unknown_value",
        "error",
        f"{where}: {value}",
        f"Triton knows no such value of {enum_type.removeprefix('inference.')}.",
        fix or f"Use one of: {', '.join(names)}.",
    )


def _advice(said: str, rest: str, text: str) -> str:
    """The next step for protobuf's other complaints."""
    field = re.search(r'multiple "(\w+)" fields', said)
    if field:
        return f"Keep one {field[1]} and remove the others."
    both = re.search(r'Field "(\w+)" is specified along with field "(\w+)"', said)
    if both:
        return f"Keep either {both[1]} or {both[2]}; Triton allows one of them."
    value = re.search(r"Value out of range: (-?\d+)", said)
    if value:
        return "Use 0 or more." if value[1].startswith("-") else "Use a smaller number."
    if "Couldn't parse integer" in said:
        return "Write a whole number without quotes."
    if "Expected string" in said:
        return f'Put the text in quotes: "{rest.split()[0].strip(chr(34))}".' if rest.split() else "Use quotes."
    if "missing ending quote" in said:
        return "Close the quotation mark on the same line."
    if said.startswith('Expected ":"'):
        return "Write the field as name: value."
    if said.startswith('Expected ","'):
        return "Separate the entries of a list by commas."
    if said.startswith(('Expected "}"', 'Expected "]"')) or text.count("{") > text.count("}"):
        return "Close every { with a } and every [ with a ]."
    if rest[:1] in ("}", "]"):
        return f"Remove this {rest[0]}: nothing is open here."
    if text.lstrip()[:1] == "{":
        return (
            'config.pbtxt is not JSON: write name: "x" without the outer braces and without quotes around field names.'
        )
    return "Write fields as name: value or name { ... }, one after the other."
