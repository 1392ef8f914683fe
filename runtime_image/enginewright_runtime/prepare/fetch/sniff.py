"""Recognizes files that are not models: most often a login page or a Git LFS pointer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_READ_BYTES: Final = 512


@dataclass(frozen=True)
class Unfit:
    """What a file is instead of what was expected, and what to do about it."""

    kind: str  # to follow "it is"
    remedy: str | None = None  # otherwise the reason's


_PAGE: Final = Unfit(
    "an HTML page",
    "give the address of the file itself, with credentials if the page is a login",
)
_EXPORT: Final = "export the model to ONNX, and give the .onnx file"
_UNPACK: Final = "unpack it, or give a .tar.gz"
_ENGINE: Final = Unfit(
    "a serialized TensorRT engine",
    "give the .onnx file that it was built from: engines are built for each accelerator class",
)
_SAFETENSORS: Final = Unfit(
    "a safetensors file: weights without a graph",
    f"{_EXPORT}, such as with torch.onnx.export or optimum-cli export onnx",
)


def _describe_text(form: str, load: str) -> Unfit:
    return Unfit(
        f"an ONNX model in {form} form", f"save it in binary form: onnx.save({load}, 'model.onnx')"
    )


_MAGIC: Final = (
    (b"<!doctype html", _PAGE),
    (b"<html", _PAGE),
    (
        b"<?xml",
        Unfit(
            "an XML document; object stores answer with one when access is refused",
            "check the address and the credentials",
        ),
    ),
    (
        b"version https://git-lfs",
        Unfit(
            "a Git LFS pointer",
            "run `git lfs pull` in the clone to have the file that it points to, or give an address"
            " that serves that file",
        ),
    ),
    (b"pk\x03\x04", Unfit("a zip archive, perhaps a PyTorch checkpoint", _EXPORT)),
    (b"\x1f\x8b", Unfit("gzip-compressed", _UNPACK)),
    (b"\xfd7zxz", Unfit("xz-compressed", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", Unfit("zstd-compressed", _UNPACK)),
    (b"bzh", Unfit("bzip2-compressed", _UNPACK)),
    (b"7z\xbc\xaf", Unfit("a 7-Zip archive", "give a .zip or .tar.gz")),
    (b"\x89hdf", Unfit("an HDF5 file", _EXPORT)),
    (b"gguf", Unfit("a GGUF file", _EXPORT)),
    (b"\x80\x02", Unfit("a Python pickle", _EXPORT)),
    (b"\x80\x04", Unfit("a Python pickle", _EXPORT)),
    # as engine headers begin: see tensorrt/header.py
    (b"ftrt", _ENGINE),
    (b"vtrt", _ENGINE),
    # models of which some tools write text, for people
    (b"ir_version:", _describe_text("protobuf's text", "onnx.load(PATH, format='textproto')")),
)
_TEXT: Final = _describe_text("ONNX's text", "onnx.parser.parse_model(open(PATH).read())")
_JSON_MODEL: Final = _describe_text("JSON", "onnx.load(PATH, format='json')")
_JSON: Final = Unfit("a JSON document")
_MAGIC_AT_4: Final = {
    b"ORTM": Unfit("in ONNX Runtime's own format", "give the .onnx file that it was made from"),
    b"TFL3": Unfit("a TensorFlow Lite model", "convert it to ONNX, and give the .onnx file"),
}
_LENGTH_BYTES: Final = 8  # of a safetensors file's JSON header, which follows
_LARGEST_HEADER: Final = 100 << 20  # as its format says


def sniff(path: Path, *, npz: bool = False) -> Unfit | None:
    """Return what the file is instead of a model (or, with `npz`, samples)."""
    with path.open("rb") as reader:
        start = reader.read(_READ_BYTES)
    if not start:
        return Unfit("empty")
    if unfit := _MAGIC_AT_4.get(start[4:8]):
        return unfit
    if npz and start.startswith(b"PK\x03\x04"):
        return None
    if _is_safetensors(start):
        return _SAFETENSORS
    lowered = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return _find_text(lowered) or next(
        (unfit for magic, unfit in _MAGIC if lowered.startswith(magic)), None
    )


def _find_text(lowered: bytes) -> Unfit | None:
    if lowered.startswith(b"{") and lowered[1:].lstrip().startswith(b'"'):
        is_model = b'"irversion"' in lowered.replace(b"_", b"")
        return _JSON_MODEL if is_model else _JSON
    has_fields = b"ir_version" in lowered and b"opset_import" in lowered
    return _TEXT if lowered.startswith(b"<") and has_fields else None


def _is_safetensors(start: bytes) -> bool:
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    return start[_LENGTH_BYTES : _LENGTH_BYTES + 2] == b'{"' and length <= _LARGEST_HEADER
