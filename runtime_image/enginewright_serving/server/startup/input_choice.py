"""Finds out at startup whether inputs in memory that the device reads directly make runs faster.

They cost a copy in this process, which pays for large inputs only. Measured before the golden samples run, so that
these prove the session as it serves.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import onnxruntime as ort
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.proof.latency.figures import is_warm
from enginewright_runtime.session.direct_inputs import Allocate, DirectInputs
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature

from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.run_proof import measure_run

_log: Final = logging.getLogger(__name__)
_GAIN: Final = 0.95  # a run takes at most this share of the time with NumPy's memory
_RUNS: Final = 30  # of each, in turns
_MOST_WARM_UPS: Final = 50
_SECONDS: Final = 2.0  # for both and their warm-up


@dataclass(frozen=True)
class InputChoice:
    """How inputs reach the device."""

    session: Any  # for `StoppableSession`
    report: dict[str, Any] = field(default_factory=dict)  # for users, if there was a choice


def choose(
    session: ort.InferenceSession,
    allocate: Allocate | None,
    signature: Signature,
    feeds: Feeds,
) -> InputChoice:
    """Return the faster way for `feeds`, the usual inputs; `allocate` returns memory that the device reads directly."""
    if allocate is None:
        return InputChoice(session)
    direct = DirectInputs(session, allocate)
    outputs = list(signature.outputs)
    ways = [partial(Runner(inputs, signature).run, outputs, feeds) for inputs in (session, direct)]
    try:
        usual, faster = _medians(ways)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common class
        _log.warning("inputs are not copied directly: %s", plain(str(error)))
        return InputChoice(session, {"direct": False})
    pays = faster <= _GAIN * usual
    seconds = {"usual": round(usual, 9), "direct": round(faster, 9)}
    return InputChoice(direct if pays else session, {"direct": pays, "seconds": seconds})


def _medians(ways: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the median time of each way; they are warm, and run in turns."""
    end = time.perf_counter() + _SECONDS
    for way in ways:
        warming: list[float] = []
        while not is_warm(warming) and len(warming) < _MOST_WARM_UPS and time.perf_counter() < end:
            warming.append(measure_run(way))
    times: list[list[float]] = [[] for _ in ways]
    for number in range(_RUNS):
        if number and time.perf_counter() >= end:
            break
        for seconds, way in zip(times, ways, strict=True):
            seconds.append(measure_run(way))
    return [float(np.median(row)) for row in times]
