"""What is known of a Triton image by its name: its release, its ONNX Runtime, and which ONNX files that takes.

Belongs here: pure rules over tags, labels and the numbers in an ONNX file. Never: a Docker engine, files.

Sources: Triton's docs/introduction/compatibility.md (release to ONNX Runtime); onnxruntime.ai's compatibility page (up
to 1.20); from 1.19 on the limits were read from the errors of the released wheels, asked for opset 99 and IR 99.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tritune.errors import InputError

NVIDIA = "nvcr.io/nvidia/tritonserver"
DEFAULT_IMAGE = f"{NVIDIA}:24.06-py3"
CPU_IMAGE = "tritune-triton:cpu"
BUILD_CPU_IMAGE = f"docker build -f docker/triton-cpu.Dockerfile -t {CPU_IMAGE} ."
ONNXRUNTIME_LABEL = "io.tritune.onnxruntime"
"""Of an image that is not NVIDIA's: the version of its ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class OnnxLimits:
    """The newest standard opset and IR version that an ONNX Runtime takes; older ones back to opset 7 are fine."""

    onnxruntime: str
    opset: int
    ir_version: int

    def misfit(self, opset: int, ir_version: int) -> str | None:
        """What is too new in a model, as `opset 22 (at most 21)`; None where it fits."""
        pairs = (("opset", opset, self.opset), ("IR version", ir_version, self.ir_version))
        return " and ".join(f"{what} {has} (at most {most})" for what, has, most in pairs if has > most) or None


_LIMITS: Mapping[str, tuple[int, int]] = {
    "1.17": (20, 9),
    "1.18": (21, 10),
    "1.19": (21, 10),
    "1.20": (21, 10),
    "1.21": (22, 10),
    "1.22": (22, 10),
    "1.23": (23, 11),
    "1.24": (25, 13),
    "1.27": (26, 13),
    "1.32": (28, 14),
}

_RELEASES: Mapping[tuple[int, int], str] = {
    (24, 4): "1.17.3",
    **dict.fromkeys([(24, 5), (24, 6)], "1.18.0"),
    **dict.fromkeys([(24, 7), (24, 8)], "1.18.1"),
    **dict.fromkeys([(24, 9), (24, 10), (24, 11)], "1.19.2"),
    **dict.fromkeys([(24, 12), (25, 1), (25, 2)], "1.20.1"),
    **dict.fromkeys([(25, 3), (25, 4)], "1.21.0"),
    **dict.fromkeys([(25, 5), (25, 6), (25, 7)], "1.22.0"),
    **dict.fromkeys([(25, 8), (25, 9)], "1.23.0"),
    (25, 10): "1.23.1",
    **dict.fromkeys([(25, 11), (25, 12), (26, 1)], "1.23.2"),
    (26, 2): "1.24.1",
    (26, 3): "1.24.2",
    **dict.fromkeys([(26, 4), (26, 5), (26, 6)], "1.24.4"),
    (26, 7): "1.27.0",
}

_NAME = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_TAG = re.compile(r"tritonserver:(\d\d)\.(\d\d)-(.+)")
_WITHOUT_ONNX: Mapping[str, str] = {
    "py3-sdk": "holds the clients and no server",
    "py3-min": "holds no server",
    "pyt-python-py3": "has no ONNX Runtime backend",
    "vllm-python-py3": "has no ONNX Runtime backend",
    "trtllm-python-py3": "has no ONNX Runtime backend",
}


def check_image(image: str) -> str:
    """`image` with a tag; a tag of NVIDIA's alone (24.10-py3, or 24.10) is that of its image.

    Raises InputError for what is no image's name, or an image that cannot serve ONNX.
    """
    name = image.strip()
    if found := re.fullmatch(r"(\d\d\.\d\d)(-[\w.-]+)?", name):
        name = f"{NVIDIA}:{found[1]}{found[2] or '-py3'}"
    if not _NAME.fullmatch(name):
        raise InputError(f"--image {image!r} is no name of an image. Give it as NAME:TAG, such as {DEFAULT_IMAGE}.")
    if ":" not in name.rpartition("/")[2] and "@" not in name:
        raise InputError(f"--image {name} has no tag. Give one, such as {name}:24.06-py3.")
    found = _TAG.search(name)
    why = _WITHOUT_ONNX.get(found[3]) if found else None
    if found and found.groups() == ("24", "02", "py3"):
        why = "was released without the ONNX Runtime backend"
    if why:
        raise InputError(f"The image {name} {why}. Choose a tag that ends in -py3, such as {DEFAULT_IMAGE}.")
    return name


def release(image: str) -> tuple[int, int] | None:
    """(year, month) of NVIDIA's release, such as (24, 6); None where the name does not say it."""
    found = _TAG.search(image)
    return (int(found[1]), int(found[2])) if found else None


def onnx_limits(image: str, labels: Mapping[str, str] | None = None) -> OnnxLimits | None:
    """What the ONNX Runtime of an image takes; None where neither its name nor its labels tell."""
    of_release = _RELEASES.get(release(image) or (0, 0))
    return limits_of((labels or {}).get(ONNXRUNTIME_LABEL) or of_release or "")


def limits_of(version: str) -> OnnxLimits | None:
    """What a version of ONNX Runtime takes; None where that is not known here."""
    found = _LIMITS.get(".".join(version.split(".")[:2]))
    return OnnxLimits(version, *found) if found else None


def first_release_for(opset: int, ir_version: int) -> str | None:
    """The tag of the oldest known release that takes such a model, such as `24.05-py3`; None where none does."""
    for (year, month), version in sorted(_RELEASES.items()):
        limits = limits_of(version)
        if limits and limits.misfit(opset, ir_version) is None:
            return f"{year}.{month:02}-py3"
    return None


def misfit_sentence(model: str, image: str, limits: OnnxLimits, opset: int, ir_version: int) -> str | None:
    """That a model is too new for an image, and what to do; None where it fits."""
    what = limits.misfit(opset, ir_version)
    if what is None:
        return None
    newer = first_release_for(opset, ir_version)
    choose = f"Choose the tag {newer} or a newer one" if newer else "No image that is known here takes it"
    return (
        f"{model} has {what}: too new for ONNX Runtime {limits.onnxruntime} in {image}. {choose}, or export the model "
        f"again with opset {limits.opset} or lower."
    )


def parse_gpus(text: str) -> str:
    """`all`, `none`, or indices or UUIDs joined by commas. Raises InputError for anything else."""
    wanted = text.strip().lower() if text.strip().lower() in ("all", "none") else text.replace(" ", "")
    if wanted in ("all", "none"):
        return wanted
    names = wanted.split(",")
    if not all(re.fullmatch(r"\d{1,3}|(?:GPU|MIG)-[\w/-]+", name) for name in names):
        raise InputError(f"--gpus {text!r} must be all, none, or indices such as 0,1.")
    if len(set(names)) != len(names):
        raise InputError(f"--gpus {text} names a GPU twice. Name each once.")
    return wanted
