"""Tells what a file is that is no model: most often a login page or a Git LFS pointer."""

from pathlib import Path
from typing import Final

_LONGEST: Final = 512
_STARTS: Final = (
    (b"<!doctype html", "an HTML page; is the address that of a web page, or behind a login?"),
    (b"<html", "an HTML page; is the address that of a web page, or behind a login?"),
    (b"<?xml", "an XML document; object stores answer with one when access is refused"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer; use the address of the file that it stands for",
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
_AT_FOUR: Final = {
    b"ORTM": "in ONNX Runtime's own format; give the .onnx file",
    b"TFL3": "a TensorFlow Lite model; convert it to ONNX",
}


def sniff(path: Path, *, npz: bool = False) -> str | None:
    """Return what the file looks like, as what follows "it is", or None when it may be a model.

    With `npz` it may also be a zip archive, which an .npz file is.
    """
    with path.open("rb") as reader:
        start = reader.read(_LONGEST)
    if not start:
        return "empty"
    if kind := _AT_FOUR.get(start[4:8]):
        return kind
    if npz and start.startswith(b"PK\x03\x04"):
        return None
    lowered = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return next((kind for magic, kind in _STARTS if lowered.startswith(magic)), None)
