"""From what native libraries say to a reason: each pattern was seen in their own words.

Nothing is concluded from a backend's name. What fits no pattern is told in the library's words.
"""

import re
from typing import Final

from enginewright.contract.causes import Cause
from enginewright.contract.reasons import Reason

from enginewright_runtime.core.failure import StageFailure
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


def failure(found: Cause) -> StageFailure:
    """Return what ends a strict load for `found`."""
    return StageFailure(found.reason, found.message)


def cause(provider: str, words: str) -> Cause:
    """Say why `provider` could not be made.

    Args:
        provider: its name, for the message.
        words: all that was written and raised meanwhile.
    """
    if known := _known(provider, words):
        return known
    told = "; ".join(errors(words)) or plain(words)
    because = f": {told}" if told else ", and nothing says why"
    return Cause(
        reason=Reason.PROVIDER_REFUSED,
        message=f"ONNX Runtime could not make {provider}{because}",
    )


def engine_cause(backend: str, words: str) -> Cause:
    """Say why an engine whose file is whole could not be loaded; arguments as in `cause`."""
    if known := _known(backend, words):
        return known
    told = "; ".join((*errors(words), plain(words)))
    return Cause(
        reason=Reason.ENGINE_INCOMPATIBLE, message=f"backend {backend} refuses the engine: {told}"
    )


def _known(who: str, words: str) -> Cause | None:
    if found := _NO_LIBRARY.search(words):
        name = found["name"].rpartition("/")[2]
        reason = Reason.DRIVER_MISSING if name in driver.LIBRARIES else Reason.PROVIDER_MISSING
        return Cause(reason=reason, message=f"{who} needs {name}, which cannot be opened")
    for pattern, reason in (
        (_OLD_DRIVER, Reason.DRIVER_TOO_OLD),
        (_OTHER_VERSION, Reason.ENGINE_VERSION_MISMATCH),
        (_OTHER_DEVICE, Reason.ENGINE_INCOMPATIBLE),
    ):
        if pattern.search(words):
            told = "; ".join(errors(words)) or plain(words)
            return Cause(reason=reason, message=f"{who} says: {told}")
    return None
