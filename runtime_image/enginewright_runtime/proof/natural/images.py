"""Photographs and lines of text as a model's input: what detectors, classifiers and readers were trained on."""

from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright_runtime.proof.natural.kinds import Shape, find_sides

_FOLDER: Final = Path(__file__).with_name("pictures")
_PAGE: Final = "page.png"  # lines of text, one below the other
_LINES: Final = 8
PICTURES: Final = ("astronaut.jpg", _PAGE, "chelsea.jpg", "coffee.jpg", "rocket.jpg")
_TURNED: Final = 4  # one line of so many is upside down
_WIDE: Final = 2.0  # width by height from which an input is one line of text


def draw_image(shape: Shape, channels: int, number: int) -> NDArray[np.float32]:
    """Return the pictures from `number` on, one a row, from 0 to 1; `channels` is the axis of their colours."""
    rows = shape[0] if len(shape) == 4 else 1
    pictures = [_draw_picture(shape, channels, number * rows + row) for row in range(rows)]
    return np.stack(pictures).reshape(shape)


def _draw_picture(shape: Shape, channels: int, number: int) -> NDArray[np.float32]:
    height, width = find_sides(shape, channels)
    picture = _find_line(number, width / height) if width >= _WIDE * height else _find(number)
    gray = shape[channels] == 1
    sized = picture.convert("L" if gray else "RGB").resize(
        (width, height), Image.Resampling.BILINEAR
    )
    colors: NDArray[Any] = np.asarray(sized, np.float32) / np.float32(255)
    if gray:
        colors = colors[..., np.newaxis]
    return colors if channels == len(shape) - 1 else colors.transpose(2, 0, 1)


def _find(number: int) -> Image.Image:
    picture = _open(PICTURES[number % len(PICTURES)])
    mirrored = number // len(PICTURES) % 2
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else picture


def _find_line(number: int, proportion: float) -> Image.Image:
    page = _open(_PAGE)
    height = page.height // _LINES
    top = number % _LINES * height
    line = page.crop((0, top, min(page.width, round(height * proportion)), top + height))
    # models look for that before they read
    return line.transpose(Image.Transpose.ROTATE_180) if number % _TURNED == _TURNED - 1 else line


@cache
def _open(name: str) -> Image.Image:
    with Image.open(_FOLDER / name) as opened:
        opened.load()
        return opened
