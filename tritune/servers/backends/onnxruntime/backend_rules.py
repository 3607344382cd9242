"""What NVIDIA's onnxruntime backend makes of a configuration: completes a missing one, refuses one that does not fit.

Belongs here: pure functions on the configuration (Triton's JSON, as a dict) and the model's tensors; refusals are in
NVIDIA's words, so that advice found elsewhere applies. Never: sessions, requests.

Behaviour follows triton-inference-server/onnxruntime_backend, src/onnxruntime.cc and onnxruntime_utils.cc.
Not here: execution accelerators, ragged batches, implicit sequence state; each is refused.
"""

import triton_python_backend_utils as pb_utils

DEFAULT_MAX_BATCH_SIZE = 4  # Triton's --backend-config=default-max-batch-size
SEQUENCE_CONTROLS = (
    "CONTROL_SEQUENCE_START",
    "CONTROL_SEQUENCE_END",
    "CONTROL_SEQUENCE_READY",
    "CONTROL_SEQUENCE_CORRID",
)
CONFIG_TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(bfloat16)": "TYPE_BF16",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}


class InvalidArgument(Exception):
    """The configuration, the model or a request is refused; the text is what NVIDIA's backend says."""


class TensorInfo:
    """One tensor of the model: `type` as in config.pbtxt, `dims` with the batch dimension and -1 for unknown ones."""

    __slots__ = ("dims", "name", "type")

    def __init__(self, node):
        if not node.type.startswith("tensor("):
            kind = {"seq(": "SEQUENCE", "map(": "MAP", "sparse_tensor(": "SPARSETENSOR"}
            name = next((text for prefix, text in kind.items() if node.type.startswith(prefix)), "UNKNOWN")
            raise InvalidArgument(
                f"Unsupported ONNX Type 'ONNX_TYPE_{name}' for I/O '{node.name}', expected 'ONNX_TYPE_TENSOR'."
            )
        self.name = node.name
        self.type = CONFIG_TYPES.get(node.type, "TYPE_INVALID")
        self.dims = [dim if isinstance(dim, int) else -1 for dim in node.shape]


def shape_text(dims):
    """Dimensions as Triton prints them: [-1,3,224,224]."""
    return "[" + ",".join(str(dim) for dim in dims) + "]"


# --- completing a configuration ------------------------------------------------------------------------------------


def is_complete(config):
    """Whether inputs and outputs are both given: NVIDIA's backend then completes nothing at all."""
    return bool((config.get("input") or config.get("batch_input")) and config.get("output"))


def complete(config, inputs, outputs):
    """Fill the configuration (a dict, changed in place) from the model's tensors, as NVIDIA's AutoCompleteConfig.

    Raises InvalidArgument where batching is asked of a model that has no variable first dimension.
    """
    name = config.get("name", "")
    max_batch_size = int(config.get("max_batch_size") or 0)
    if all(tensor.dims and tensor.dims[0] == -1 for tensor in (*inputs, *outputs)):
        if max_batch_size == 0:
            max_batch_size = config["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
            pb_utils.Logger.log_warn(
                f"autofilled max_batch_size to {max_batch_size} for model '{name}' since batching is supporrted but "
                "no max_batch_size is specified in model configuration. Must specify max_batch_size to utilize "
                "autofill with a larger max batch size"
            )
        if max_batch_size > 1 and "sequence_batching" not in config and "dynamic_batching" not in config:
            config["dynamic_batching"] = {}
    elif max_batch_size != 0:
        raise InvalidArgument(
            f"autofill failed for model '{name}': model does not support batching while non-zero max_batch_size"
            " is specified"
        )
    if not config.get("input") and not config.get("batch_input"):
        config["input"] = [_completed(tensor, max_batch_size) for tensor in inputs]
    if not config.get("output"):
        config["output"] = [_completed(tensor, max_batch_size) for tensor in outputs]


def _completed(tensor, max_batch_size):
    dims = tensor.dims[1:] if max_batch_size > 0 else list(tensor.dims)
    entry = {"name": tensor.name, "data_type": tensor.type, "dims": dims or [1]}
    if not dims and max_batch_size > 0:
        entry["reshape"] = {"shape": []}
    return entry


# --- refusing a configuration that does not fit the model ----------------------------------------------------------


def validate(name, config, inputs, outputs, initializers=()):
    """Compare the configuration with the model's tensors; raise InvalidArgument in NVIDIA's words where they differ."""
    _refuse_unsupported(name, config)
    max_batch_size = int(config.get("max_batch_size") or 0)
    expected = _expected_inputs(config)
    if len(inputs) != expected:
        raise InvalidArgument(
            f"unable to load model '{name}', configuration expects {expected} inputs, model provides {len(inputs)}"
        )
    for entry in config.get("input", []):
        if entry.get("optional") and max_batch_size != 0:
            raise InvalidArgument(
                f"unable to load model '{name}', optional input '{entry['name']}' is not supported for models that "
                "support batching"
            )
        _validate_tensor(name, "input", entry, (*inputs, *initializers), max_batch_size)
    for entry in config.get("output", []):
        _validate_tensor(name, "output", entry, outputs, max_batch_size)


def _refuse_unsupported(name, config):
    ragged = [entry["name"] for entry in config.get("input", []) if entry.get("allow_ragged_batch")]
    fields = ["allow_ragged_batch"] if ragged else []
    fields += [field for field in ("batch_input", "batch_output") if config.get(field)]
    if (config.get("sequence_batching") or {}).get("state"):
        fields.append("sequence_batching.state")
    types = {entry.get("data_type") for entry in config.get("input", [])}
    if "TYPE_STRING" in types and "TYPE_BF16" in types | {entry.get("data_type") for entry in config.get("output", [])}:
        fields.append("TYPE_STRING beside TYPE_BF16")
    if fields:
        raise InvalidArgument(
            f"unable to load model '{name}', {' and '.join(fields)} is not supported by the embedded server's "
            "onnxruntime backend; serve this model with NVIDIA's container"
        )


def _expected_inputs(config):
    count = sum(1 for entry in config.get("input", []) if not entry.get("optional"))
    for control_input in (config.get("sequence_batching") or {}).get("control_input", []):
        count += sum(1 for control in control_input.get("control", []) if control.get("kind") in SEQUENCE_CONTROLS)
    return count


def _validate_tensor(name, direction, entry, tensors, max_batch_size):
    by_name = {tensor.name: tensor for tensor in tensors}
    tensor = by_name.get(entry["name"])
    if tensor is None:
        raise InvalidArgument(
            f"unexpected inference {direction} '{entry['name']}', allowed {direction}s are: "
            + ", ".join(sorted(by_name))
        )
    data_type = entry.get("data_type", "TYPE_INVALID")
    if data_type not in CONFIG_TYPES.values():
        raise InvalidArgument(f"unsupported datatype {data_type} for {direction} '{entry['name']}' for model '{name}'")
    if data_type != tensor.type:
        provided = "TYPE_BYTES" if tensor.type == "TYPE_STRING" else tensor.type
        raise InvalidArgument(
            f"unable to load model '{name}', configuration expects datatype {data_type} for {direction} "
            f"'{entry['name']}', model provides {provided}"
        )
    dims = entry["reshape"].get("shape", []) if "reshape" in entry else entry.get("dims", [])
    dims = [int(dim) for dim in dims]
    if tensor.dims:
        compare_dims(name, tensor, dims, max_batch_size, exact=direction == "output")
    elif any(dim != 1 for dim in dims):
        raise InvalidArgument(
            f"unable to load model '{name}', scalar tensor '{tensor.name}', should only provide 1 in the model "
            f"configuration when the model doesn't support batching. Model configuration provided: {shape_text(dims)}."
        )


def compare_dims(name, tensor, dims, max_batch_size, *, exact):
    """Inputs may be narrower than the model's, outputs (`exact`) must be equal: NVIDIA's CompareDimsSupported."""
    batching = max_batch_size > 0
    if batching and tensor.dims[0] != -1:
        raise InvalidArgument(
            f"model '{name}', tensor '{tensor.name}': for the model to support batching the shape should have at "
            "least 1 dimension and the first dimension must be -1; but shape expected by the model is "
            + shape_text(tensor.dims)
        )
    full = [-1, *dims] if batching else dims
    fits = len(full) == len(tensor.dims) and all(
        ours == theirs or (theirs == -1 and not exact) for ours, theirs in zip(full, tensor.dims, strict=True)
    )
    if fits:
        return
    start = (
        f"model '{name}', tensor '{tensor.name}': the model expects {len(tensor.dims)} dimensions (shape "
        f"{shape_text(tensor.dims)}) but the model configuration specifies {len(full)} dimensions "
    )
    if batching:
        raise InvalidArgument(
            start + "(an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
            f"making complete shape {shape_text(full)})"
        )
    raise InvalidArgument(start + f"(shape {shape_text(full)})")
