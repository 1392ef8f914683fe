"""The sizes of images from their headers, and decoding what is damaged."""

import io
import struct

import numpy as np
import pytest
from enginewright_runtime.session.processing.images import NotAnImageError, image_size, plain_png
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.support.processing import huge_png, picture, two_sizes


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"exif": b"Exif\0\0" + bytes(9000)}]
)
def test_a_jpegs_size_is_in_its_frame(options: dict[str, object]) -> None:
    file = io.BytesIO()
    Image.new("RGB", (321, 123)).save(file, "JPEG", **options)
    assert image_size(file.getvalue()) == (321, 123)


def test_a_pngs_size_is_in_its_header() -> None:
    assert image_size(huge_png(30000, 20000)) == (30000, 20000)


@pytest.mark.parametrize("size", [0, 1, 3, 8, 20, 23])
def test_truncated_headers_are_refused(size: int) -> None:
    for whole in (picture((1, 2, 3)), huge_png(5, 5)):
        with pytest.raises(NotAnImageError):
            image_size(whole[:size])


def test_a_jpeg_of_segments_only_is_refused_soon() -> None:
    with pytest.raises(NotAnImageError, match="too many segments"):
        image_size(b"\xff\xd8" + struct.pack(">BBH", 0xFF, 0xE1, 2) * 100_000)


@given(st.binary(max_size=200), st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b""]))
def test_no_bytes_raise_another_error(data: bytes, start: bytes) -> None:
    try:
        width, height = image_size(start + data)
    except NotAnImageError:
        return
    assert width >= 0
    assert height >= 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_only_the_size_that_was_checked_is_decoded(kind: str) -> None:
    data = two_sizes(kind, (8, 8), (4000, 4000))
    assert image_size(data) == (8, 8)
    with pytest.raises(NotAnImageError, match="headers with different sizes"):
        plain_png(np.frombuffer(data, np.uint8))


def test_a_jpeg_of_many_scans_is_refused() -> None:
    file = io.BytesIO()
    Image.new("L", (64, 64)).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    plain_png(np.frombuffer(whole, np.uint8))
    last = whole.rindex(b"\xff\xda")
    data = whole[:-2] + whole[last:-2] * 100 + whole[-2:]
    with pytest.raises(NotAnImageError, match="more than 64 scans"):
        plain_png(np.frombuffer(data, np.uint8))


def pixels(png: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(png.tobytes())))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (7, 5), "white").convert(mode).save(file, "PNG")
    image = pixels(plain_png(np.frombuffer(file.getvalue(), np.uint8)))
    assert image.shape == (5, 7, 3)
    assert np.all(image == 255)


def test_sixteen_bits_of_grey_are_scaled() -> None:
    values = np.array([[0, 256, 0x8000, 0xFFFF]], np.uint16)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    image = pixels(plain_png(np.frombuffer(file.getvalue(), np.uint8)))
    assert image[0, :, 0].tolist() == [0, 1, 128, 255]


@given(st.integers(0, 600), st.integers(0, 255))
def test_damaged_images_are_decoded_or_refused(at: int, value: int) -> None:
    damaged = bytearray(picture((200, 100, 50)))
    damaged[at % len(damaged)] = value
    data = np.frombuffer(bytes(damaged), np.uint8)
    try:
        png = plain_png(data)
    except NotAnImageError:
        return
    assert Image.open(io.BytesIO(png.tobytes())).mode == "RGB"
