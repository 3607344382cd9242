"""The exact request for one model on one server, as text to copy: a curl command and Python client code.

Belongs here: pure text from endpoints, names and tensors. Never: sending anything (the page and the tests do).
"""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.payload import Payload, Tensor, http_body
from tritune.errors import InputError
from tritune.load_plan import Protocol
from tritune.plan import Endpoints

INLINE_ELEMENTS = 64
_NO_JSON = ("FP16", "BF16")
_DTYPES = {
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}


def base_url(endpoints: Endpoints) -> str:
    """`http://127.0.0.1:8000`, with https where the server wants TLS."""
    return f"{'http' if endpoints.tls is None else 'https'}://{endpoints.http}"


def json_request(payload: Payload) -> str:
    """The KServe v2 request as JSON, one line. Raises InputError for FP16 and BF16, which JSON cannot carry."""
    inputs = []
    for tensor in payload:
        if tensor.datatype in _NO_JSON:
            raise InputError(
                f"Input {tensor.name} is {tensor.datatype}, which a JSON request cannot carry. Send it as binary data."
            )
        shape = list(tensor.shape)
        inputs.append({"name": tensor.name, "shape": shape, "datatype": tensor.datatype, "data": _json_data(tensor)})
    return json.dumps({"inputs": inputs}, separators=(",", ":"))


def curl(endpoints: Endpoints, model: str, payload: Payload) -> str:
    """A command for a POSIX shell that sends this payload and prints the answer.

    JSON where JSON can carry the inputs; otherwise the same bytes through base64 as KServe's binary data.
    """
    options = ["-H " + shlex.quote(f"{name}: {value}") for name, value in endpoints.headers.items()]
    options += _curl_tls(endpoints.tls)
    url = shlex.quote(f"{base_url(endpoints)}/v2/models/{model}/infer")
    try:
        options += ["-H 'Content-Type: application/json'", "-d " + shlex.quote(json_request(payload))]
        return _lines(["curl -sS " + url, *options])
    except InputError:
        made = http_body(payload)
    options += [f"-H 'Inference-Header-Content-Length: {made.json_length}'", "--data-binary @-", "--output answer.bin"]
    body = base64.b64encode(made.body).decode()
    return f"printf %s {body} | base64 -d | " + _lines(["curl -sS " + url, *options])


def python_client(
    endpoints: Endpoints,
    model: str,
    payload: Payload,
    outputs: Sequence[str],
    *,
    protocol: Protocol = Protocol.HTTP,
) -> str:
    """A Python program that sends this payload with tritonclient and prints every output.

    Raises InputError for gRPC where the server has no gRPC address.
    """
    address = endpoints.http if protocol is Protocol.HTTP else endpoints.grpc
    if address is None:
        raise InputError("This server has no gRPC address. Use the HTTP client.")
    imports = ["import numpy as np", f"import tritonclient.{protocol} as triton"]
    if any(_is_long(tensor) for tensor in payload):
        imports[:0] = ["import base64", "import zlib", ""]
    has_bf16 = any(tensor.datatype == "BF16" for tensor in payload)
    if has_bf16:  # NVIDIA's client takes BF16 as this type since 26.06
        imports.insert(imports.index("import numpy as np"), "import ml_dtypes")
    lines = [f"# pip install tritonclient[{protocol}]{' ml_dtypes' if has_bf16 else ''}", *imports, ""]
    lines.append(
        f"client = triton.InferenceServerClient({', '.join([repr(address), *_client_tls(endpoints, protocol)])})"
    )
    names = []
    for number, tensor in enumerate(payload):
        name = f"x{number}" if len(payload) > 1 else "x"
        lines += [f"{name} = {_array(tensor)}", *_input(name, tensor)]
        names.append(f"{name}_input")
    headers = f", headers={dict(endpoints.headers)!r}" if endpoints.headers else ""
    lines.append(f"answer = client.infer({model!r}, [{', '.join(names)}]{headers})")
    lines += [f"print({output!r}, answer.as_numpy({output!r}))" for output in outputs]
    return "\n".join(lines) + "\n"


def values(tensor: Tensor) -> npt.NDArray[Any]:
    """The tensor as an array (BYTES: an array of bytes objects). Raises InputError for a type NumPy has not."""
    if tensor.datatype == "BYTES":
        return np.array(_elements(tensor.raw), dtype=object).reshape(tensor.shape)
    if tensor.datatype == "BF16":
        wide = np.frombuffer(tensor.raw, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(tensor.shape)
    if tensor.datatype not in _DTYPES:
        raise InputError(f"Input {tensor.name} has the type {tensor.datatype}, which NumPy does not have.")
    return np.frombuffer(tensor.raw, _DTYPES[tensor.datatype]).reshape(tensor.shape)


def _json_data(tensor: Tensor) -> list[Any]:
    flat = values(tensor).reshape(-1)
    if tensor.datatype == "BYTES":
        return [element.decode("utf-8", errors="replace") for element in flat]
    if tensor.datatype == "FP32":
        # Seven digits hold a float32's value for every purpose but equality, in half the characters.
        return [int(value) if value == int(value) else float(f"{value:.7g}") for value in flat.tolist()]
    return list(flat.tolist())


def _elements(raw: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(raw):
        length = int.from_bytes(raw[position : position + 4], "little")
        found.append(raw[position + 4 : position + 4 + length])
        position += 4 + length
    return found


def _curl_tls(tls: Mapping[str, Any] | None) -> list[str]:
    if tls is None:
        return []
    options = [] if tls.get("verify", True) else ["--insecure"]
    for option, name in (("--cacert", "ca"), ("--cert", "cert"), ("--key", "key")):
        if tls.get(name):
            options.append(f"{option} {shlex.quote(str(tls[name]))}")
    return options


def _client_tls(endpoints: Endpoints, protocol: Protocol) -> list[str]:
    tls = endpoints.tls
    if tls is None:
        return []
    given = {name: str(tls[name]) for name in ("ca", "cert", "key") if tls.get(name)}
    if protocol is Protocol.GRPC:
        names = {"ca": "root_certificates", "cert": "certificate_chain", "key": "private_key"}
        return ["ssl=True", *(f"{names[name]}={path!r}" for name, path in given.items())]
    names = {"ca": "ca_certs", "cert": "certfile", "key": "keyfile"}
    options = {names[name]: path for name, path in given.items()}
    words = ["ssl=True"] + ([f"ssl_options={options!r}"] if options else [])
    return words if tls.get("verify", True) else [*words, "insecure=True"]


def _is_long(tensor: Tensor) -> bool:
    return tensor.datatype not in ("BYTES", "BF16") and values(tensor).size > INLINE_ELEMENTS


def _array(tensor: Tensor) -> str:
    shape = tuple(tensor.shape)
    if tensor.datatype == "BYTES":
        return f"np.array({_elements(tensor.raw)!r}, dtype=object).reshape({shape})"
    if tensor.datatype == "BF16":
        return f"np.array({values(tensor).reshape(-1).tolist()!r}, dtype=ml_dtypes.bfloat16).reshape({shape})"
    dtype = "bool_" if tensor.datatype == "BOOL" else _DTYPES[tensor.datatype]
    if not _is_long(tensor):
        return f"np.array({values(tensor).reshape(-1).tolist()!r}, dtype=np.{dtype}).reshape({shape})"
    packed = base64.b64encode(zlib.compress(tensor.raw, 9)).decode()
    return f'np.frombuffer(zlib.decompress(base64.b64decode("{packed}")), dtype=np.{dtype}).reshape({shape})'


def _input(name: str, tensor: Tensor) -> list[str]:
    return [
        f"{name}_input = triton.InferInput({tensor.name!r}, {list(tensor.shape)}, {tensor.datatype!r})",
        f"{name}_input.set_data_from_numpy({name})",
    ]


def _lines(parts: Sequence[str]) -> str:
    return " \\\n  ".join(parts)
