"""A picture of a digit becomes what MNIST's pictures are: light on dark, 20 pixels high, centred by mass."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tritune import digits, mnist
from tritune.errors import InputError


def png(array: np.ndarray, mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(file, "PNG")
    return file.getvalue()


def stroke(background: int, ink: int, side: int = 200) -> np.ndarray:
    """A thick vertical stroke away from the middle."""
    picture = np.full((side, side), background, np.uint8)
    picture[20:120, 30:45] = ink
    return picture


@pytest.mark.parametrize(("background", "ink"), [(255, 0), (0, 255), (200, 40), (60, 220)])
def test_any_contrast_gives_the_same_light_digit_on_black(background: int, ink: int) -> None:
    made = digits.prepare(png(stroke(background, ink)))
    assert made.shape == (28, 28)
    assert made.dtype == np.uint8
    assert (made.max(), made[0, 0]) == (255, 0)
    rows = np.flatnonzero(made.any(axis=1))
    assert rows[-1] - rows[0] + 1 == 20


def test_the_centre_of_mass_is_in_the_middle() -> None:
    made = digits.prepare(png(stroke(255, 0))).astype(float)
    rows, columns = np.indices(made.shape)
    for axis in (rows, columns):
        # The digit is placed on whole pixels.
        assert abs((axis * made).sum() / made.sum() - 13.5) <= 0.51


def test_a_picture_of_mnist_stays_as_it_is() -> None:
    for image, _ in mnist.sample_images():
        assert np.array_equal(digits.prepare(png(image)), image)


def test_transparent_paper_counts_as_white() -> None:
    picture = np.zeros((80, 80, 4), np.uint8)
    picture[20:60, 35:45] = (0, 0, 0, 255)
    made = digits.prepare(png(picture))
    assert made[14, 14] == 255
    assert made[0, 0] == 0


@pytest.mark.parametrize("data", [b"", b"not a picture", png(stroke(255, 0))[:60], b"GIF89a"])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="not a picture"):
        digits.prepare(data)


@pytest.mark.parametrize("level", [0, 128, 255])
def test_an_empty_sheet_is_refused(level: int) -> None:
    with pytest.raises(InputError, match="Nothing stands out"):
        digits.prepare(png(np.full((50, 50), level, np.uint8)))


def test_a_picture_of_one_row_is_still_placed() -> None:
    picture = np.full((40, 300), 255, np.uint8)
    picture[20:22, 10:290] = 0
    assert digits.prepare(png(picture)).any()
