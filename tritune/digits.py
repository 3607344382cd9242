"""A picture of a handwritten digit as the MNIST network knows them: 28×28, light on dark, centred.

Belongs here: pure image arithmetic. Never: the network (mnist), widgets.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from tritune.errors import InputError

SIDE = 28
BOX = 20
WORK_SIDE = 280
FAINT = 0.2
"""Share of the strongest stroke below which a pixel counts as background."""
MAX_PIXELS = 50_000_000

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


def prepare(data: bytes) -> Bytes:
    """Grey values uint8 (28, 28), 0 the background, from the bytes of a PNG, JPEG or other picture.

    As MNIST was made: inverted where the background is light, the digit scaled into 20×20 and its centre of mass
    put into the middle (http://yann.lecun.com/exdb/mnist/). A 28×28 picture on a dark background stays as it is.
    Raises InputError where it is no picture or nothing stands out in it.
    """
    grey = _grey(data)
    light = float(np.median(_edge(grey))) > 127
    if light:
        grey = 255 - grey
    elif grey.shape == (SIDE, SIDE):
        return grey
    strokes = np.clip(grey.astype(float) - float(np.median(_edge(grey))), 0, None)
    if strokes.max() < 16:
        raise InputError(
            "Nothing stands out in this picture. Use one dark digit on a light background, or the reverse."
        )
    strokes /= strokes.max()
    strokes[strokes < FAINT] = 0
    return _centred(_boxed(strokes))


def _grey(data: bytes) -> Bytes:
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture: Any = Image.open(io.BytesIO(data))
            if picture.width * picture.height > MAX_PIXELS:
                raise InputError(
                    f"The picture has {picture.width}×{picture.height} pixels. Use one of at most 50 million."
                )
            picture = ImageOps.exif_transpose(picture)
            if "A" in picture.getbands() or "transparency" in picture.info:
                picture = picture.convert("RGBA")
                white = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(white, picture)
            picture = picture.convert("L")
            if max(picture.size) > WORK_SIDE:
                picture.thumbnail((WORK_SIDE, WORK_SIDE))
    except InputError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"The file is not a picture that can be read ({error}). Use a PNG or a JPEG.") from error
    return np.asarray(picture, dtype=np.uint8)


def _edge(grey: Bytes) -> Bytes:
    """The outermost pixels, which are background."""
    return np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])


def _boxed(strokes: Floats) -> Floats:
    """The part that holds the digit, scaled so that its longer side has 20 pixels."""
    from PIL import Image

    rows, columns = np.flatnonzero(strokes.any(axis=1)), np.flatnonzero(strokes.any(axis=0))
    digit = strokes[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = BOX / max(digit.shape)
    height, width = (max(1, round(side * scale)) for side in digit.shape)
    scaled = Image.fromarray((digit * 255).astype(np.uint8)).resize((width, height), Image.Resampling.BOX)
    found: Floats = np.array(scaled, dtype=float)
    found /= max(float(found.max()), 1.0)
    return found


def _centred(digit: Floats) -> Bytes:
    """28×28 with the digit's centre of mass in the middle, as far as it fits."""
    total = digit.sum()
    height, width = digit.shape
    middle = ((digit.sum(axis=1) @ np.arange(height)) / total, (digit.sum(axis=0) @ np.arange(width)) / total)
    top, left = (
        int(np.clip(round(SIDE / 2 - centre - 0.5), 0, SIDE - side))
        for centre, side in zip(middle, digit.shape, strict=True)
    )
    canvas = np.zeros((SIDE, SIDE), dtype=np.uint8)
    canvas[top : top + height, left : left + width] = np.round(digit * 255).astype(np.uint8)
    return canvas
