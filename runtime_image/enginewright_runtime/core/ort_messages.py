"""Shortens ONNX Runtime's messages, without source lines, for conditions that users read."""

import re
from typing import Final

_STATUS: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : (?P<code>\w+) : (?P<text>.*)", re.DOTALL)
_FUNCTION: Final = re.compile(
    r"/?(?:onnxruntime|onnxruntime_src|__w)/\S+?:\d+ .*?\)(?: const)?(?:::<lambda\(.*?\)>)?"
    r"(?: \[with .*?\])? (?=[A-Za-z\[(])",
    re.DOTALL,
)
_PLACE: Final = re.compile(r"(?:Exception from|at) (?:src|/)\S+:\d+:?")
_SOURCE_LINE: Final = re.compile(r"\b[\w./-]+\.(?:h|hpp|cc|cpp|cuh?):\d+ \w+ ")
_FILE: Final = re.compile(r"Load model from \S+ failed: ?")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_RECORD: Final = re.compile(
    r"^\S+ \S+ \[(?P<level>[VIWEF]):onnxruntime:[^\]]*\] (?P<text>.*)", re.MULTILINE
)
_OPENVINO: Final = re.compile(r".*\[OpenVINO(?:-EP)?\] ?", re.DOTALL)
_CUDA_PLACE: Final = re.compile(r" ?; GPU=-?\d+ ;.*", re.DOTALL)  # with the pod's name in it
_LONGEST: Final = 400
_NO_MEMORY: Final = re.compile(
    r"std::bad_alloc|[Ff]ailed to allocate (?:memory|\d+ bytes)|MemoryError|[Oo]ut of memory"
    r"|Available memory of \d+ is smaller than requested"  # a limited arena's
    r"|\bOutOfMemory\b|Memory allocation failed\. Size="  # TensorRT's; ONNX Runtime's for TensorRT
    r"|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED"
)


def status(text: str) -> str | None:
    """Return ONNX Runtime's status code, such as INVALID_GRAPH, or None."""
    match = _STATUS.match(text)
    return match.group("code") if match else None


def plain(text: str) -> str:
    """Return the message in one line, without status, source lines and paths, truncated."""
    match = _STATUS.search(text) if _FUNCTION.match(text) else _STATUS.match(text)
    message = match.group("text") if match else text
    message = _FILE.sub("", _COLOUR.sub("", message))
    message = _CUDA_PLACE.sub("", _OPENVINO.sub("OpenVINO: ", message))
    message = _SOURCE_LINE.sub("", _PLACE.sub("", _FUNCTION.sub("", message)))
    message = " ".join(message.split())
    return message if len(message) <= _LONGEST else message[:_LONGEST] + " …"


def errors(text: str) -> tuple[str, ...]:
    """Return the errors that ONNX Runtime logged in `text`, shortened and without duplicates."""
    records = _RECORD.finditer(_COLOUR.sub("", text))
    messages = (plain(record["text"]) for record in records if record["level"] in "EF")
    return tuple(dict.fromkeys(messages))


def is_out_of_memory(text: str) -> bool:
    """Return whether native code or NumPy reports a failed allocation."""
    return _NO_MEMORY.search(text) is not None
