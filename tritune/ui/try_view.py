"""The try-it page's parts: a picture, the answer, the code to copy.

Belongs here: choosing an input and showing an answer. Never: making a request's text (snippets) or sending it (triton).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import streamlit as st

from loadgen.payload import Payload, Tensor, http_body, payloads
from tritune import digits, mnist, snippets, ui
from tritune.errors import TritonRefusedError
from tritune.load_plan import LoadPlan, Protocol
from tritune.plan import Signature
from tritune.shape_mix import parse_shapes
from tritune.ui import wording

ZOOM = 9
INFERENCE_HEADER = "Inference-Header-Content-Length"
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: output name → flat values, and how long it took in ms."""

    outputs: Mapping[str, list[Any]]
    latency_ms: float


def takes_digits(signature: Signature) -> bool:
    """Whether a model wants one 28×28 picture and gives ten values, as the MNIST network does."""
    batched = signature.max_batch_size > 0
    inputs = [(spec.datatype, spec.shape if batched else spec.shape[1:]) for spec in signature.inputs]
    outputs = [spec.shape if batched else spec.shape[1:] for spec in signature.outputs]
    return inputs == [("FP32", (1, 28, 28))] and outputs == [(10,)]


def choose_picture() -> Bytes:
    """A committed test image or an upload, as 28×28 grey values."""
    images = mnist.sample_images()
    place = st.container()
    own = st.file_uploader("Or your own picture of a digit", type=["png", "jpg", "jpeg", "webp", "bmp"])
    if own is not None:
        return digits.prepare(own.getvalue())
    index = place.pills(
        "An image of MNIST's test set",
        range(len(images)),
        default=14 if len(images) > 14 else 0,
        required=True,
        format_func=lambda number: str(images[number][1]),
        wrap=True,
    )
    return images[int(index or 0)][0]


def show_pixels(pixels: Bytes) -> None:
    """What the model sees, enlarged."""
    large = np.kron(pixels, np.ones((ZOOM, ZOOM), dtype=np.uint8))
    st.image(
        large, caption="What the model sees: 28×28 grey values", alt="The digit as the model sees it", width=28 * ZOOM
    )


def digit_payload(signature: Signature, pixels: Bytes) -> Payload:
    """The request's one tensor."""
    array = mnist.normalise(pixels)
    return (Tensor(signature.inputs[0].name, "FP32", (1, 1, 28, 28), array.tobytes()),)


def choose_shapes(signature: Signature) -> dict[str, tuple[int, ...]]:
    """Sizes for the dimensions that the request chooses."""
    free = [spec for spec in signature.inputs if -1 in spec.shape]
    if not free:
        return {}
    example = " ".join(f"{s.name}:{','.join('8' if size < 0 else str(size) for size in s.shape)}" for s in free)
    shapes, mix = parse_shapes(st.text_input("Shapes of the inputs", example, key="try_shapes").split())
    return dict(mix[0].shapes) if mix else shapes


def example_payload(model: str, signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> Payload:
    """A valid request with made-up values."""
    st.markdown("This model takes something else than a picture of a digit, so the request holds made-up values.")
    return payloads(signature, LoadPlan(model=model, concurrency=1, shapes=shapes), 1)[0]


def ask(model: str, payload: Payload) -> Answer:
    """Send one request. Raises ServerDownError, and TritonRefusedError with Triton's words."""
    triton = ui.triton()
    made = http_body(payload)
    begin = time.perf_counter()
    status, headers, content = triton.infer(
        model, made.body, {INFERENCE_HEADER: str(made.json_length), "Content-Type": "application/octet-stream"}
    )
    latency_ms = (time.perf_counter() - begin) * 1e3
    lengths = {name.lower(): value for name, value in headers.items()}
    length = int(lengths.get(INFERENCE_HEADER.lower(), len(content)))
    try:
        document = json.loads(content[:length])
    except ValueError:
        document = {"error": content[:200].decode(errors="replace")}
    if status != 200:
        reason = str(document.get("error", "no reason given"))
        raise TritonRefusedError(f"Triton refused the request to {model}: {reason}", status=status, reason=reason)
    return Answer(dict(_values(document["outputs"], content[length:])), latency_ms)


def _values(outputs: list[dict[str, Any]], raw: bytes) -> Iterator[tuple[str, list[Any]]]:
    """Each output's name and flat values; what is no JSON comes behind it, in the order of the outputs."""
    position = 0
    for output in outputs:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            yield output["name"], output["data"]
            continue
        part = raw[position : position + size]
        position += size
        flat = snippets.values(Tensor(output["name"], output["datatype"], tuple(output["shape"]), part)).reshape(-1)
        yield output["name"], [v.decode(errors="replace") if isinstance(v, bytes) else v for v in flat.tolist()]


def probabilities(answer: Answer) -> None:
    """Ten probabilities, from log-probabilities or raw scores."""
    scores = np.array(next(iter(answer.outputs.values())), dtype=float)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    best = int(shares.argmax())
    with st.container(horizontal=True):
        st.metric("The model says", str(best), border=True)
        st.metric("Probability", f"{shares[best]:.1%}", border=True)
        st.metric("Latency of this request", wording.figure(answer.latency_ms, "ms"), border=True)
    frame = pd.DataFrame({"Digit": [str(digit) for digit in range(10)], "Probability": shares})
    st.bar_chart(
        frame,
        x="Digit",
        y="Probability",
        x_label="Digit",
        y_label="Probability, 0 to 1",
        horizontal=True,
        height=330,
        alt=f"Probability of each digit; {best} is the highest with {shares[best]:.1%}",
    )


def outputs(answer: Answer) -> None:
    """Every output's first values."""
    st.metric("Latency of this request", wording.figure(answer.latency_ms, "ms"), width="content", border=True)
    for name, data in answer.outputs.items():
        st.markdown(f"**{wording.plain(name)}**, {len(data):,} values")
        st.code(json.dumps(data[:64]) + (" …" if len(data) > 64 else ""), language="json", wrap_lines=True)


def code(model: str, signature: Signature, payload: Payload) -> None:
    """curl and Python, ready to copy."""
    endpoints = ui.triton().endpoints
    names = [spec.name for spec in signature.outputs]
    labels = ["curl", "Python, HTTP"] + (["Python, gRPC"] if endpoints.grpc else [])
    tabs = st.tabs(labels)
    with tabs[0]:
        st.code(snippets.curl(endpoints, model, payload), language="bash", height=260, wrap_lines=True)
    for tab, protocol in zip(tabs[1:], (Protocol.HTTP, Protocol.GRPC), strict=False):
        with tab:
            text = snippets.python_client(endpoints, model, payload, names, protocol=protocol)
            st.code(text, language="python", height=300, wrap_lines=True)
    if takes_digits(signature):
        st.caption(
            "The input is float32 in 0 to 1 (grey value / 255); the output is the logarithm of each probability."
        )
