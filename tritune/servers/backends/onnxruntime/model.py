"""The Triton backend "onnxruntime" of the embedded server, as a Python-based backend.

Belongs here: session options from the configuration, and running a batch of requests as one, as NVIDIA's C++ backend
does on a CPU. Never: anything of Tritune; this folder is copied into the server's private folder and runs under the
Python of .triton/ (numpy < 2), one process an instance.
"""

import contextlib
import ctypes
import json
import math
import os
import re
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from backend_rules import InvalidArgument, TensorInfo, complete, is_complete, shape_text, validate

# --- the session ---------------------------------------------------------------------------------------------------


def parameter(config, key):
    """The string value of `parameters { key: ... }`, or None."""
    value = (config.get("parameters") or {}).get(key)
    return None if value is None else value.get("string_value", "")


def whole_number(text):
    """std::stoi, which NVIDIA's backend uses: leading digits count, none is an error."""
    match = re.match(r"\s*[+-]?\d+", text)
    if not match:
        raise InvalidArgument(f"failed to convert '{text}' to integral number")
    return int(match.group())


def boolean(text):
    """true/on/1 and false/off/0 in any case."""
    if text.lower() in ("true", "on", "1"):
        return True
    if text.lower() in ("false", "off", "0"):
        return False
    raise InvalidArgument(f"failed to convert '{text}' to boolean")


def available_cores():
    """Cores this process may use: its affinity, cut by the control group's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))


def thread_counts(config, cores):
    """(intra, inter) op threads: what `parameters` say, else each instance gets its share of the cores.

    Every instance is a process with its own ONNX Runtime; left to itself each would take all cores.
    inter 0 leaves ONNX Runtime's default.
    """
    intra = whole_number(parameter(config, "intra_op_thread_count") or "0")
    inter = whole_number(parameter(config, "inter_op_thread_count") or "0")
    if intra <= 0:
        instances = sum(int(group.get("count") or 1) for group in config.get("instance_group", [])) or 1
        intra = max(1, cores // instances)
    return intra, max(0, inter)


def session_options(config, ort):
    """ort.SessionOptions from `optimization.graph.level` and `parameters`, as NVIDIA's ModelState."""
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    optimization = config.get("optimization") or {}
    level = int((optimization.get("graph") or {}).get("level") or 0)
    options.graph_optimization_level = {
        -1: levels.ORT_ENABLE_BASIC,
        1: levels.ORT_ENABLE_EXTENDED,
        2: levels.ORT_DISABLE_ALL,
    }.get(level, levels.ORT_ENABLE_ALL)
    accelerators = (optimization.get("execution_accelerators") or {}).get("cpu_execution_accelerator") or []
    for accelerator in accelerators:
        raise InvalidArgument(f"unknown Execution Accelerator '{accelerator.get('name', '')}' is requested")
    mode = whole_number(parameter(config, "execution_mode") or "0")
    if mode not in (0, 1):
        raise InvalidArgument(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    intra, inter = thread_counts(config, available_cores())
    options.intra_op_num_threads = intra
    if inter:
        options.inter_op_num_threads = inter
    for key, attribute in (("enable_mem_arena", "enable_cpu_mem_arena"), ("enable_mem_pattern", "enable_mem_pattern")):
        text = parameter(config, key)
        if text is not None:
            setattr(options, attribute, boolean(text))
    key = "session.use_device_allocator_for_initializers"
    if parameter(config, key) is not None:
        options.add_session_config_entry(key, parameter(config, key))
    for library in (config.get("model_operations") or {}).get("op_library_filename", []):
        options.register_custom_ops_library(library)
    return options


def model_file(version_folder, config):
    """The ONNX file of a version: `default_model_filename`, else model.onnx; a folder holds a model.onnx."""
    path = Path(version_folder) / (config.get("default_model_filename") or "model.onnx")
    if path.is_dir():
        path = path / "model.onnx"
    if not path.exists():
        raise InvalidArgument(f"unable to find '{path}' for model instance '{config.get('name', '')}'")
    return path


def ort_message(error):
    """An ONNX Runtime exception in the words of NVIDIA's backend: onnx runtime error 7: ..."""
    match = re.match(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", str(error), re.DOTALL)
    return f"onnx runtime error {match[1]}: {match[2]}" if match else f"onnx runtime error 1: {error}"


def open_session(path, options, ort):
    """A session on the file itself (not its bytes: weights may lie beside it)."""
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own exception types share no base
        raise InvalidArgument(ort_message(error)) from error


def import_quietly():
    """Import ONNX Runtime in a thread that takes only what time others leave.

    A model that warms up is loaded beside the one that answers, which should not be late for it. The session is opened
    by the caller: its threads would keep the low rank, and a process without rights cannot raise it again.
    """

    def work():
        with contextlib.suppress(OSError):  # not allowed here: then at the usual rank
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        import onnxruntime  # noqa: F401

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# --- BF16, which NumPy does not have: its bits travel as uint16 ----------------------------------------------------

ONNX_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


class _DLTensor(ctypes.Structure):
    """The head of a DLPack capsule (dlpack.h)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint8 * 4),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _bits(address, shape):
    """A copy of BF16 data in memory, as uint16."""
    count = math.prod(shape)
    return np.array((ctypes.c_uint16 * count).from_address(address or 0) if count else [], np.uint16).reshape(shape)


def bits_of_request(tensor):
    """A request's BF16 tensor as uint16."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = tensor.to_dlpack()
    head = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    return _bits(head.data + head.byte_offset, head.shape[: head.ndim])


class TritonPythonModel:
    """What Triton's Python backend calls; one object in one process for each instance."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config.as_dict()
        if is_complete(config):
            return auto_complete_model_config  # and ONNX Runtime is not even imported: a reload is shorter
        import onnxruntime as ort

        # The Python backend does not say where the model lies; the stub's command line does.
        argument = Path("/proc/self/cmdline").read_bytes().split(b"\0")[1]
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = open_session(model_file(Path(os.fsdecode(argument)).parent, config), options, ort)
        complete(config, list(map(TensorInfo, session.get_inputs())), list(map(TensorInfo, session.get_outputs())))
        return auto_complete_model_config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        if config.get("model_warmup"):
            import_quietly()
        import onnxruntime as ort

        name = args["model_name"]
        options = session_options(config, ort)
        path = model_file(Path(args["model_repository"]) / args["model_version"], config)
        session = open_session(path, options, ort)
        inputs = list(map(TensorInfo, session.get_inputs()))
        outputs = list(map(TensorInfo, session.get_outputs()))
        validate(name, config, inputs, outputs, list(map(TensorInfo, session.get_overridable_initializers())))
        self._name = name
        self._session = session
        self._batches = int(config.get("max_batch_size") or 0) > 0
        self._outputs = [entry["name"] for entry in config["output"]]
        self._strings = any(entry["data_type"] == "TYPE_STRING" for entry in config["input"])
        entries = (*config["input"], *config["output"])
        self._bf16 = {entry["name"] for entry in entries if entry["data_type"] == "TYPE_BF16"}
        self._ort_value = ort.OrtValue
        # A tensor without dimensions is [1] to Triton, unless the configuration reshapes it (then Triton itself does).
        self._scalar_inputs = {tensor.name for tensor in inputs if not tensor.dims}
        scalars = {tensor.name for tensor in outputs if not tensor.dims}
        self._scalar_outputs = {
            entry["name"]: [int(dim) for dim in entry["dims"]]
            for entry in config["output"]
            if entry["name"] in scalars and "reshape" not in entry
        }
        self._run_options = None
        shrinkage = parameter(config, "memory.enable_memory_arena_shrinkage")
        if shrinkage is not None:
            self._run_options = ort.RunOptions()
            self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinkage)
        pb_utils.Logger.log_info(
            f"{args['model_instance_name']}: {path.name}, ONNX Runtime {ort.__version__}, "
            f"{options.intra_op_num_threads} intra-op threads"
        )

    def execute(self, requests):
        if len(requests) == 1 or not self._batches:
            return [self._answer(request) for request in requests]
        feeds = []
        try:
            feeds = [self._feed(request) for request in requests]
            joined = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
            names = self._requested(requests)
            outputs = self._run(names, joined)
        except Exception:
            # One request of the batch is bad (an index out of range, say): only that one may fail.
            return [self._answer(request) for request in requests]
        total = len(next(iter(joined.values())))
        if any(np.ndim(output) == 0 or len(output) != total for output in outputs):
            shapes = ", ".join(shape_text(np.shape(output)) for output in outputs)
            message = f"model '{self._name}' answered a batch of {total} with outputs of shape {shapes}"
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(message)) for _ in requests]
        responses = []
        start = 0
        for feed in feeds:
            end = start + len(next(iter(feed.values())))
            # Slices along the first axis are contiguous views: Triton copies them once, into shared memory.
            responses.append(self._response(names, [output[start:end] for output in outputs]))
            start = end
        return responses

    def _answer(self, request):
        """One request by itself: no copy of its input, and its own error."""
        try:
            feed = self._feed(request)
            names = self._requested([request])
            return self._response(names, self._run(names, feed))
        except Exception as error:  # the edge: whatever a request causes is that request's answer
            message = str(error) if isinstance(error, InvalidArgument) else ort_message(error)
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message))

    def _feed(self, request):
        if self._bf16:
            feed = {
                tensor.name(): bits_of_request(tensor) if tensor.name() in self._bf16 else tensor.as_numpy()
                for tensor in request.inputs()
            }
        else:
            feed = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if self._strings:
            for name, array in feed.items():
                if array.dtype == np.object_:
                    feed[name] = self._text(name, array)
        for name in self._scalar_inputs:
            if name in feed:
                feed[name] = feed[name].reshape(())
        return feed

    def _text(self, name, array):
        """ONNX strings are text; Triton's are bytes."""
        try:
            flat = [item.decode() for item in array.ravel()]
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"input '{name}' of model '{self._name}' is not UTF-8 text: {error}") from error
        return np.array(flat, dtype=np.object_).reshape(array.shape)

    def _requested(self, requests):
        """The outputs that some request of the batch asked for, so that ONNX Runtime computes no others."""
        if len(self._outputs) == 1:
            return self._outputs
        wanted = set()
        for request in requests:
            wanted.update(request.requested_output_names())
        return [name for name in self._outputs if name in wanted]

    def _run(self, names, feed):
        if not self._bf16:
            return self._session.run(names, feed, self._run_options)
        values = {name: self._to_ort(name, array) for name, array in feed.items()}
        outputs = self._session.run_with_ort_values(names, values, self._run_options)
        return [
            _bits(output.data_ptr(), output.shape()) if name in self._bf16 else output.numpy()
            for name, output in zip(names, outputs, strict=True)
        ]

    def _to_ort(self, name, array):
        array = np.ascontiguousarray(array)
        if name in self._bf16:
            return self._ort_value.ortvalue_from_numpy_with_onnx_type(array, ONNX_BFLOAT16)
        return self._ort_value.ortvalue_from_numpy(array)

    def _response(self, names, outputs):
        if self._scalar_outputs:
            outputs = [
                np.asarray(output).reshape(self._scalar_outputs.get(name, np.shape(output)))
                for name, output in zip(names, outputs, strict=True)
            ]
        if not self._bf16:
            return pb_utils.InferenceResponse(list(map(pb_utils.Tensor, names, outputs)))
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor.from_dlpack(name, self._to_ort(name, output))
                if name in self._bf16
                else pb_utils.Tensor(name, output)
                for name, output in zip(names, outputs, strict=True)
            ]
        )
