"""The text to copy holds the request exactly: what a shell and Python read out of it is what was put in."""

from __future__ import annotations

import base64
import json
import shlex
import sys
import types
from typing import Any

import numpy as np
import pytest

from loadgen.payload import Tensor
from tritune import snippets
from tritune.errors import InputError
from tritune.load_plan import Protocol
from tritune.plan import Endpoints

HERE = Endpoints("127.0.0.1:8000", "127.0.0.1:8001")
PIXELS = np.linspace(0, 1, 784, dtype=np.float32).reshape(1, 1, 28, 28)
IMAGE = (Tensor("INPUT__0", "FP32", (1, 1, 28, 28), PIXELS.tobytes()),)


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def body(command: str) -> Any:
    parts = words(command)
    return json.loads(parts[parts.index("-d") + 1])


def run(program: str, monkeypatch: pytest.MonkeyPatch, protocol: str = "http") -> dict[str, Any]:
    """Run a program against a client that writes down what it was given."""
    seen: dict[str, Any] = {"inputs": {}}

    class Client:
        def __init__(self, address: str, **options: Any) -> None:
            seen["address"], seen["options"] = address, options

        def infer(self, model: str, inputs: list[Any], **options: Any) -> Any:
            seen["model"], seen["infer"] = model, options
            return types.SimpleNamespace(as_numpy=lambda name: name)

    class Input:
        def __init__(self, name: str, shape: list[int], datatype: str) -> None:
            self.about = (name, shape, datatype)

        def set_data_from_numpy(self, array: Any) -> None:
            seen["inputs"][self.about[0]] = (*self.about[1:], array)

    module = types.ModuleType(f"tritonclient.{protocol}")
    module.InferenceServerClient, module.InferInput = Client, Input  # type: ignore[attr-defined]
    package = types.ModuleType("tritonclient")
    setattr(package, protocol, module)
    monkeypatch.setitem(sys.modules, "tritonclient", package)
    monkeypatch.setitem(sys.modules, f"tritonclient.{protocol}", module)
    exec(compile(program, "snippet", "exec"), {"__name__": "snippet", "print": lambda *_: None})
    return seen


def test_curl_sends_every_pixel() -> None:
    command = snippets.curl(HERE, "mnist", IMAGE)
    assert "http://127.0.0.1:8000/v2/models/mnist/infer" in words(command)
    sent = body(command)["inputs"][0]
    assert (sent["name"], sent["shape"], sent["datatype"]) == ("INPUT__0", [1, 1, 28, 28], "FP32")
    # Seven digits: half a unit in the last of them.
    assert np.allclose(sent["data"], PIXELS.reshape(-1), rtol=1e-6, atol=0)


def test_headers_and_tls_are_quoted_for_the_shell() -> None:
    ends = Endpoints(
        "gpu:443", headers={"Authorization": "Bearer it's; $HOME"}, tls={"ca": "/a b/ca.pem", "verify": True}
    )
    parts = words(snippets.curl(ends, "m", IMAGE))
    assert "https://gpu:443/v2/models/m/infer" in parts
    assert "Authorization: Bearer it's; $HOME" in parts
    assert parts[parts.index("--cacert") + 1] == "/a b/ca.pem"
    assert "--insecure" in words(snippets.curl(Endpoints("gpu:443", tls={"verify": False}), "m", IMAGE))


def test_text_travels_as_text() -> None:
    raw = b"".join(len(word).to_bytes(4, "little") + word for word in (b"it's", "größe".encode()))
    command = snippets.curl(HERE, "m", (Tensor("TEXT", "BYTES", (2,), raw),))
    assert body(command)["inputs"][0]["data"] == ["it's", "größe"]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_what_json_cannot_carry_goes_as_binary_data(datatype: str) -> None:
    payload = (Tensor("X", datatype, (2,), b"\x00\x3c\x00\x40"),)
    with pytest.raises(InputError, match="JSON"):
        snippets.json_request(payload)
    command = snippets.curl(HERE, "m", payload)
    assert base64.b64decode(words(command)[2]).endswith(b"\x00\x3c\x00\x40")
    assert "Inference-Header-Content-Length" in command


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", PIXELS),
        ("FP16", np.ones((1, 100), np.float16)),
        ("INT64", np.array([[1, -2, 3]], np.int64)),
        ("UINT8", np.arange(200, dtype=np.uint8)),
        ("BOOL", np.array([[True, False]])),
        ("FP64", np.array([0.1, 1e-300])),
    ],
)
def test_the_python_program_holds_the_tensor_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, datatype: str, array: Any
) -> None:
    payload = (Tensor("X", datatype, array.shape, array.tobytes()),)
    seen = run(snippets.python_client(HERE, "m", payload, ["Y"]), monkeypatch)
    shape, said, sent = seen["inputs"]["X"]
    assert (shape, said, sent.dtype) == (list(array.shape), datatype, array.dtype)
    assert sent.tobytes() == array.tobytes()


def test_the_python_program_sends_several_inputs_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (3).to_bytes(4, "little") + b"a\x00'"
    payload = (
        Tensor("IDS", "INT32", (1, 2), np.array([[1, 2]], np.int32).tobytes()),
        Tensor("T", "BYTES", (1, 1), raw),
    )
    ends = Endpoints("127.0.0.1:8000", "127.0.0.1:8001", headers={"key": "va'lue"})
    seen = run(snippets.python_client(ends, "two", payload, ["A", "B"], protocol=Protocol.GRPC), monkeypatch, "grpc")
    assert (seen["address"], seen["model"]) == ("127.0.0.1:8001", "two")
    assert seen["inputs"]["T"][2].tolist() == [[b"a\x00'"]]
    assert seen["infer"] == {"headers": {"key": "va'lue"}}


def test_grpc_without_an_address_is_refused() -> None:
    with pytest.raises(InputError, match="no gRPC address"):
        snippets.python_client(Endpoints("127.0.0.1:8000"), "m", IMAGE, [], protocol=Protocol.GRPC)
