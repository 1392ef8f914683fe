"""JPEG and PNG images from clients: their sizes by their headers, and a form that is safe to decode.

A few kilobytes may hold gigabytes of pixels, so the size is checked before decoding. onnxruntime-extensions
decodes no other formats. Sources: ISO/IEC 10918-1, B.2.2 (a frame's header); PNG specification, 11.2.1 (IHDR,
the first chunk).
"""

import io
import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_IHDR: Final = struct.Struct(">I4sII")
_SEGMENT: Final = struct.Struct(">BBH")  # marker in two bytes, length including itself
_FRAME: Final = struct.Struct(">BHH")  # precision, height, width
_JPEG: Final = b"\xff\xd8\xff"
# start of frame: all of 0xC0 to 0xCF but Huffman tables, an extension and arithmetic conditioning
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN: Final = 0xDA
_MOST_SEGMENTS: Final = 4096  # before the frame
_FORMATS: Final = ("JPEG", "PNG")
# Of a progressive JPEG. Encoders write ten. One takes some bytes in the file and, for each million pixels,
# about a millisecond, so that thousands would take minutes.
_MOST_SCANS: Final = 64
_SCAN_MARKER: Final = b"\xff\xda"  # never part of a scan's data (ISO/IEC 10918-1, B.1.1.5)


class NotAnImageError(ValueError):
    """The bytes are no image that can be decoded; the message says why."""


def image_size(data: bytes | memoryview) -> tuple[int, int]:
    """Return width and height in pixels; raises NotAnImageError."""
    try:
        if bytes(data[:8]) == _PNG:
            return _png(data)
        if bytes(data[:3]) == _JPEG:
            return _jpeg(data)
    except (struct.error, IndexError):
        raise NotAnImageError("its header is truncated") from None
    raise NotAnImageError("it is neither a JPEG nor a PNG")


def _png(data: bytes | memoryview) -> tuple[int, int]:
    _, kind, width, height = _IHDR.unpack_from(data, len(_PNG))
    if kind != b"IHDR":
        raise NotAnImageError("it is a PNG without a header")
    return width, height


def _jpeg(data: bytes | memoryview) -> tuple[int, int]:
    at = 2
    for _ in range(_MOST_SEGMENTS):
        first, marker, length = _SEGMENT.unpack_from(data, at)
        if first != 0xFF or marker == _SCAN or length < 2:
            raise NotAnImageError("it is a JPEG without the header of a frame")
        if marker == 0xFF:  # a fill byte before the marker
            at += 1
            continue
        if marker in _FRAMES:
            _, height, width = _FRAME.unpack_from(data, at + _SEGMENT.size)
            return width, height
        at += 2 + length
    raise NotAnImageError("it is a JPEG with too many segments")


def plain_png(data: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an image, decoded by Pillow, as an uncompressed PNG in RGB.

    The decoder of onnxruntime-extensions 0.15.2 never returns from truncated JPEGs, and ends the process on
    other damaged ones. Pillow reports both, and most models are trained with its pixels.

    Raises NotAnImageError if it is damaged, has another size than `image_size` returns, or too many scans.
    """
    out = io.BytesIO()
    content = data.tobytes()
    if content.startswith(_JPEG) and content.count(_SCAN_MARKER) > _MOST_SCANS:
        raise NotAnImageError(f"it is a JPEG with more than {_MOST_SCANS} scans")
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            _check_size(content, image.size)
            shown: Image.Image = image
            if image.mode.startswith("I"):  # 16 bits of grey, which `convert` would clip
                shown = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            shown.convert("RGB").save(out, "PNG", compress_level=0)
    except NotAnImageError:
        raise
    except UnidentifiedImageError:
        raise NotAnImageError("its header is damaged") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise NotAnImageError(f"it is damaged: {error}") from None
    return np.frombuffer(out.getbuffer(), np.uint8)


def _check_size(data: bytes, size: tuple[int, int]) -> None:
    """Refuse an image with several headers, of which Pillow takes the last one."""
    if size != image_size(data):
        raise NotAnImageError("it has headers with different sizes")
