"""Recognizes files that are not models: most often a login page or a Git LFS pointer."""

from pathlib import Path
from typing import Final

_READ_BYTES: Final = 512
_MAGIC: Final = (
    (b"<!doctype html", "an HTML page; does the address need a login, or name a web page?"),
    (b"<html", "an HTML page; does the address need a login, or name a web page?"),
    (b"<?xml", "an XML document; object stores answer with one when access is refused"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer; use the address of the file that it points to",
    ),
    (b"pk\x03\x04", "a zip archive, perhaps a PyTorch checkpoint; export it to ONNX"),
    (b"\x1f\x8b", "gzip-compressed; unpack it, or give a .tar.gz"),
    (b"\xfd7zxz", "xz-compressed; unpack it, or give a .tar.gz"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed; unpack it, or give a .tar.gz"),
    (b"bzh", "bzip2-compressed; unpack it, or give a .tar.gz"),
    (b"7z\xbc\xaf", "a 7-Zip archive; give a .zip or .tar.gz"),
    (b"\x89hdf", "an HDF5 file; export it to ONNX"),
    (b"gguf", "a GGUF file; export it to ONNX"),
    (b"\x80\x02", "a Python pickle; export it to ONNX"),
    (b"\x80\x04", "a Python pickle; export it to ONNX"),
    (b'{"', "a JSON document"),
)
_MAGIC_AT_4: Final = {
    b"ORTM": "in ONNX Runtime's own format; give the .onnx file",
    b"TFL3": "a TensorFlow Lite model; convert it to ONNX",
}


def sniff(path: Path, *, npz: bool = False) -> str | None:
    """Return what the file is instead of a model (or, with `npz`, samples), to follow "it is"."""
    with path.open("rb") as reader:
        start = reader.read(_READ_BYTES)
    if not start:
        return "empty"
    if kind := _MAGIC_AT_4.get(start[4:8]):
        return kind
    if npz and start.startswith(b"PK\x03\x04"):
        return None
    lowered = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next((kind for magic, kind in _MAGIC if lowered.startswith(magic)), None)
