"""Checks an engine file by its digest and its header, before anything deserializes it.

No GPU is needed. TensorRT's version is where NVIDIA's trtexec reads it (--getPlanVersionOnly). The rest is not
documented: it was determined by comparing the engines that TensorRT-RTX 1.4 to 1.7 build for every compute
capability, and TensorRT 10.6's for 9.0. So it only supplements the manifest, and an unknown header is logged.
"""

import logging
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright_contract.manifest import EngineInfo
from enginewright_contract.reasons import Reason

from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import StageFailure

_log: Final = logging.getLogger(__name__)
_BACKENDS: Final = {b"vtrt": "tensorrt-rtx", b"ftrt": "tensorrt"}  # by magic
# magic, 12 bytes of unknown use, size of the file, version, 4 bytes, TensorRT-RTX's bits of compute capabilities
_LAYOUT: Final = struct.Struct("<4s12xQ4B4xI")
_CAPABILITIES: Final = {1: "7.5", 2: "8.0", 4: "8.6", 8: "8.9", 16: "12.0", 32: "12.1"}


@dataclass(frozen=True)
class EngineHeader:
    """The contents of an engine's header."""

    backend: str
    version: str  # of the builder: 1.7.1.116, 10.6.0.26
    size_bytes: int
    compute_capabilities: tuple[str, ...]  # that it runs on, if known


def read_header(path: Path) -> EngineHeader | None:
    """Return the header of an engine, or None if its format is unknown; raises OSError."""
    with path.open("rb") as reader:
        return parse_header(reader.read(_LAYOUT.size))


def parse_header(head: bytes) -> EngineHeader | None:
    """Return the header of an engine that begins with `head`, or None if its format is unknown."""
    if len(head) < _LAYOUT.size:
        return None
    magic, size, *version, bits = _LAYOUT.unpack_from(head)
    backend = _BACKENDS.get(magic)
    if backend is None:
        return None
    capabilities = _CAPABILITIES if backend == "tensorrt-rtx" else {}
    names = tuple(name for bit, name in capabilities.items() if bits & bit)
    return EngineHeader(backend, ".".join(map(str, version)), size, names)


def is_version(one: str, other: str) -> bool:
    """Whether two versions agree as far as both are stated: TensorRT's bindings say 10.6.0, its engines 10.6.0.26."""
    return all(a == b for a, b in zip(one.split("."), other.split("."), strict=False))


def check_engine(
    path: Path, expected: EngineInfo, compute_capability: str | None, backend_version: str | None
) -> None:
    """Refuse an engine that cannot run here, without loading it; raises StageFailure.

    The compute capability, "8.9", and the library's version are those here, where they are known.
    """
    header = _check_content(path, expected)
    built_by = header.version if header else expected.recipe.backend_version
    if backend_version is not None and not is_version(built_by, backend_version):
        raise StageFailure(
            Reason.ENGINE_VERSION_MISMATCH,
            f"the engine was built by {expected.recipe.backend} {built_by}, but this image has"
            f" {backend_version}",
        )
    runs_on = (header.compute_capabilities if header else ()) or expected.compute_capabilities
    if compute_capability is not None and compute_capability not in runs_on:
        raise StageFailure(
            Reason.ENGINE_INCOMPATIBLE,
            f"the engine runs on compute capability {', '.join(runs_on) or 'unknown'}, but this"
            f" device has {compute_capability}",
        )


def _check_content(path: Path, expected: EngineInfo) -> EngineHeader | None:
    try:
        content = file_sha256(path)
        header = read_header(path)
    except OSError as error:
        raise _corrupt(path, f"it cannot be read: {error.strerror}") from error
    if content.size_bytes != expected.size_bytes:
        raise _corrupt(path, f"it has {content.size_bytes} bytes instead of {expected.size_bytes}")
    if content.sha256 != expected.sha256:
        suffix = "" if header else ", and it has no engine header"
        raise _corrupt(
            path, f"its sha256 is {content.sha256[:12]} instead of {expected.sha256[:12]}{suffix}"
        )
    if header is None:
        _log.warning("the header of engine %s has an unknown format: not checked", path.name)
    return header


def _corrupt(path: Path, cause: str) -> StageFailure:
    return StageFailure(Reason.ENGINE_CORRUPT, f"engine file {path.name} is damaged: {cause}")
