"""Maps errors of native libraries to reasons, by patterns seen in their output; others are reported as written."""

import re
from typing import Final

from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding

from enginewright_runtime.core.ort_messages import errors, plain
from enginewright_runtime.session import driver

_NO_LIBRARY: Final = re.compile(r"(?P<name>\S+): cannot open shared object file")
_OLD_DRIVER: Final = re.compile(
    r"CUDA (?:failure|error) 3[56]\b|CUDA driver version is insufficient"
    r"|not supported in the installed CUDA driver"
)
_OTHER_DEVICE: Final = re.compile(
    r"generated on an incompatible device|[Tt]arget GPU SM \S+ is not supported"
)
_OTHER_VERSION: Final = re.compile(
    r"not compatible with this version of TensorRT|[Vv]ersion tag does not match"
)


def cause(provider: str, text: str) -> Finding:
    """Return why `provider` could not be created, by all that was logged and raised."""
    if finding := _recognize(provider, text):
        return finding
    detail = "; ".join(errors(text)) or plain(text)
    because = f": {detail}" if detail else ", and no error was logged"
    return Finding(
        reason=Reason.PROVIDER_REFUSED,
        cause=f"ONNX Runtime could not create {provider}{because}",
    )


def engine_cause(backend: str, text: str) -> Finding:
    """Return why an engine with an undamaged file could not be loaded; arguments as in `cause`."""
    if finding := _recognize(backend, text):
        return finding
    detail = "; ".join((*errors(text), plain(text)))
    return Finding(
        reason=Reason.ENGINE_INCOMPATIBLE, cause=f"backend {backend} rejected the engine: {detail}"
    )


def _recognize(who: str, text: str) -> Finding | None:
    if match := _NO_LIBRARY.search(text):
        name = match["name"].rpartition("/")[2]
        reason = Reason.DRIVER_MISSING if name in driver.LIBRARIES else Reason.PROVIDER_MISSING
        return Finding(reason=reason, cause=f"{who} needs {name}, which cannot be opened")
    for pattern, reason in (
        (_OLD_DRIVER, Reason.DRIVER_TOO_OLD),
        (_OTHER_VERSION, Reason.ENGINE_VERSION_MISMATCH),
        (_OTHER_DEVICE, Reason.ENGINE_INCOMPATIBLE),
    ):
        if pattern.search(text):
            detail = "; ".join(errors(text)) or plain(text)
            return Finding(reason=reason, cause=f"{who}: {detail}")
    return None
