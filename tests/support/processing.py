"""Small models with real steps around them: an image decoder, the choice of a label."""

import io
import struct
import zlib

import onnx
from PIL import Image

from tests.support.broken_models import initializer, parse_text

DOMAIN = "com.microsoft.extensions"  # of onnxruntime-extensions
LABELS = ("red", "green", "blue")


def decoder() -> onnx.ModelProto:
    """Return image [bytes] -> pixels [1, 3, 8, 8]: decoded, resized, divided by 255."""
    return parse_text(  # the operator decodes to BGR
        """(uint8["bytes"] image) => (float[1, 3, 8, 8] pixels)
        <int64[3] rgb = {2, 1, 0}, int64[3] sizes = {8, 8, 3}, float scale = {255}, int64[1] axis = {0}> {
        decoded = com.microsoft.extensions.DecodeImage(image)
        colors = Gather <axis = 2> (decoded, rgb)
        resized = Resize <mode = "nearest"> (colors, , , sizes)
        floats = Cast <to = 1> (resized) scaled = Div(floats, scale)
        channels = Transpose <perm = [2, 0, 1]> (scaled) pixels = Unsqueeze(channels, axis) }""",
        domains=[(DOMAIN, 1)],
    )


def classifier() -> onnx.ModelProto:
    """Return pixels [n, 3, 8, 8] -> scores [n, 3], the mean of each channel, and brightness [n, 1]."""
    return parse_text(
        """(float["n", 3, 8, 8] pixels) => (float["n", 3] scores, float["n", 1] brightness) {
        scores = ReduceMean <axes = [2, 3], keepdims = 0> (pixels)
        brightness = ReduceMean <axes = [1]> (scores) }"""
    )


def labeller() -> onnx.ModelProto:
    """Return scores [n, 3] -> label [n], the name of the largest."""
    return parse_text(
        """(float["n", 3] scores) => (string["n"] label) {
        best = ArgMax <axis = 1, keepdims = 0> (scores) label = Gather(labels, best) }""",
        initializer("labels", LABELS, object),
    )


def picture(color: tuple[int, int, int], kind: str = "JPEG", size: int = 32) -> bytes:
    """Return an image of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (size, size), color).save(file, kind)
    return file.getvalue()


def huge_png(width: int, height: int) -> bytes:
    """Return a small PNG that says it is huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def two_sizes(kind: str, first: tuple[int, int], second: tuple[int, int]) -> bytes:
    """Return an image with two headers, whose sizes differ."""
    if kind == "PNG":
        given = huge_png(*second)
        head, rest = given[:8], given[8:]
        header = huge_png(*first)[8:33]
        return head + header + rest
    whole = picture((1, 2, 3), size=first[0])
    at = whole.index(b"\xff\xc0")
    frame = bytearray(whole[at : whole.index(b"\xff\xc4")])
    end = at + len(frame)
    frame[5:9] = struct.pack(">HH", second[1], second[0])
    return whole[:end] + bytes(frame) + whole[end:]
