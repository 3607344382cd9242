"""What JSON costs against binary tensors for one megabyte: the tutorial's "120 ms against 8 ms", measured.

    python -m benchmarks.json_vs_binary [--rounds 5] [--duration 3] [--megabytes 1]

An identity model (FP32, one input, one output of the same size) is served by the embedded Triton, and one client of a
closed loop sends the same random numbers in both forms, in rounds whose order is turned (A B, B A, …). Three times are
told apart: the whole request as the client sees it (its bytes are made before: transfer, the server's parsing, the
model, the server's writing), the client's own making of the body, and its reading of the answer. The sum is what a
program sees that makes every request anew.

Belongs here: this one question. Never: other wires, other models.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadgen import child
from loadgen.encoding import json_body
from loadgen.payload import Payload, http_body, payloads
from loadgen.samples import Status, read_stream
from tritune import servers
from tritune.errors import LoadTestError, TrituneError
from tritune.load_plan import GeneratorPlan, LoadPlan, Wire
from tritune.plan import Signature
from tritune.settings import Settings
from tritune.triton import Triton

MODEL = "identity"
FORMS = (Wire.JSON, Wire.BINARY)
ENCODINGS = 5


def publish_identity(repository: Path, floats: int) -> None:
    """y = x, FP32, any batch of `floats` numbers."""
    import onnx
    from onnx import TensorProto, helper

    shape: list[str | int | None] = ["batch", floats]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], MODEL, [x], [y])
    folder = repository / MODEL / "1"
    folder.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")


@contextlib.contextmanager
def identity_server(folder: Path, floats: int) -> Iterator[Triton]:
    """A Triton of its own with the model, ended in the end."""
    ours = Settings.from_env()
    settings = Settings(
        root=ours.root,
        model_repo=folder / "models",
        results=folder / "results",
        database_url=f"sqlite:///{folder / 'results' / 'tritune.db'}",
        embedded_env=ours.embedded_env,
        mnist_dir=None,
    )
    publish_identity(settings.model_repo, floats)
    servers.start(settings)
    try:
        with servers.connect(settings) as triton:
            yield triton
    finally:
        servers.stop(settings)


def random_input(path: Path, floats: int) -> Path:
    """Random numbers as a program would have them: about nine digits each, where round ones would flatter JSON."""
    numbers = np.random.default_rng(0).standard_normal(floats).astype(np.float32)
    path.write_text(json.dumps({"data": [{"x": [float(f"{number:.9g}") for number in numbers]}]}), encoding="utf-8")
    return path


def request_ms(triton: Triton, signature: Signature, load: LoadPlan, folder: Path) -> float:
    """The median time from sending to the whole answer. Raises LoadTestError where a request failed."""
    made = child.start(GeneratorPlan(load, triton.endpoints, signature), folder)
    try:
        made.wait(load.warmup_s + load.duration_s + 120)
    finally:
        made.cancel()
    outcome = made.outcome()
    samples = read_stream(folder / "samples.arrow")
    if outcome.errors:
        raise LoadTestError(f"{load.wire}: {outcome.errors[0]['message']}")
    mine = (samples.sent_ns >= outcome.window_start_ns) & (samples.status == Status.OK)
    return float(np.median((samples.done_ns - samples.sent_ns)[mine])) / 1e6


def median_ms(work: Callable[[], Any]) -> float:
    """The median time of a few calls."""
    times = []
    for _ in range(ENCODINGS):
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


def client_ms(payload: Payload) -> dict[Wire, tuple[float, float]]:
    """Making the body from an array and reading the answer into one, by form."""
    raw = payload[0].raw
    text = json_body(payload).body
    made_json = median_ms(lambda: json_body(payload))
    read_json = median_ms(lambda: np.array(json.loads(text)["inputs"][0]["data"], dtype=np.float32))
    made_binary = median_ms(lambda: http_body(payload))
    read_binary = median_ms(lambda: np.frombuffer(raw, dtype=np.float32).copy())
    return {Wire.JSON: (made_json, read_json), Wire.BINARY: (made_binary, read_binary)}


def measure(rounds: int, duration_s: float, megabytes: float) -> list[str]:
    """The report's lines. Raises TrituneError."""
    floats = max(1, round(megabytes * 2**20 / 4))
    times: dict[Wire, list[float]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory(prefix="tritune-json-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        data = random_input(folder / "input.json", floats)
        with identity_server(folder, floats) as triton:
            signature = triton.signature(MODEL)
            for number in range(rounds):
                for form in FORMS if number % 2 == 0 else FORMS[::-1]:
                    load = LoadPlan(
                        MODEL, concurrency=1, wire=form, duration_s=duration_s, warmup_s=0.5, input_data=str(data)
                    )
                    times[form].append(request_ms(triton, signature, load, folder / f"{number}-{form}"))
            (payload,) = payloads(signature, load)
    client = client_ms(payload)
    body = {Wire.JSON: len(json_body(payload).body), Wire.BINARY: len(http_body(payload).body)}
    lines = [f"{megabytes:g} MB of FP32 there and back, one client, {rounds} interleaved rounds of {duration_s:g} s"]
    totals = {}
    for form in FORMS:
        request, (making, reading) = statistics.median(times[form]), client[form]
        totals[form] = request + making + reading
        lines.append(
            f"{form:6}  request {request:8.2f} ms ({min(times[form]):.2f} to {max(times[form]):.2f})   body made in "
            f"{making:7.2f} ms, answer read in {reading:7.2f} ms   in all {totals[form]:8.2f} ms   "
            f"body {body[form] / 1e6:.2f} MB"
        )
    ratios = [slow / fast for slow, fast in zip(times[Wire.JSON], times[Wire.BINARY], strict=True)]
    lines.append(
        f"JSON / binary: {statistics.median(ratios):.1f} for the request ({min(ratios):.1f} to {max(ratios):.1f} by "
        f"round), {totals[Wire.JSON] / totals[Wire.BINARY]:.1f} with the client's work. The claim was 120 / 8 = 15."
    )
    return lines


def main() -> int:
    """Read the options, measure, print; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", type=float, default=3.0)
    parser.add_argument("--megabytes", type=float, default=1.0)
    options = parser.parse_args()
    try:
        lines = measure(options.rounds, options.duration, options.megabytes)
    except TrituneError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
