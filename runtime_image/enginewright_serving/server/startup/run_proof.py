"""Runs the model at startup: all outputs, their time, and whether they agree."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from enginewright_runtime.core.request_errors import RequestError
from enginewright_runtime.session.datatypes import BF16
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.signature import Signature, Tensor
from numpy.typing import NDArray

from enginewright_serving.server.observe.memory import resident_bytes
from enginewright_serving.server.protocol.decode import Feeds

# Of an output's largest magnitude. Kernels round differently by batch size; a scale that neighbours
# share changes 8-bit activations by 1% and more.
_TOLERANCES: Final = {"FP64": 1e-4, "FP32": 1e-3, "FP16": 1e-2, "BF16": 3e-2}


class RunProver:
    """What proofs of one session have in common."""

    def __init__(self, runner: Runner, signature: Signature) -> None:
        self._runner = runner
        self._signature = signature
        self._outputs = list(signature.outputs)
        self._resident: Callable[[], int] = resident_bytes
        self._clock: Callable[[], float] = time.perf_counter
        self.slowest = 0.0  # seconds of a run

    def _run(self, feeds: Feeds) -> list[NDArray[Any]]:
        return self._runner.run(self._outputs, feeds)

    def _accepts(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether the model's signature and its profiles admit inputs of these shapes."""
        lists = {name: list(shape) for name, shape in shapes.items()}
        try:
            for name, shape in lists.items():
                self._signature.inputs[name].count(shape)
            self._signature.check_together(lists)
        except RequestError:
            return False
        return True

    def _end_run(self, began: float) -> float:
        taken = self._clock() - began
        self.slowest = max(self.slowest, taken)
        return taken

    def _differing(
        self,
        expected: Sequence[NDArray[Any]],
        actual: Sequence[NDArray[Any]],
        *,
        slack: float = 1.0,
    ) -> str | None:
        """Return the first output that differs by more than `slack` times its tolerance, if one does."""
        for name, one, other in zip(self._outputs, expected, actual, strict=True):
            if not _same(self._signature.outputs[name], one, other, slack):
                return name
        return None


def measure_run(run: Callable[[], Any]) -> float:
    """Return the seconds of a run."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _same(tensor: Tensor, single: NDArray[Any], joined: NDArray[Any], slack: float) -> bool:
    tolerance = _TOLERANCES.get(tensor.datatype.name)
    if single.shape != joined.shape:
        return False
    if tolerance is None:
        return bool(np.array_equal(single, joined))
    if tensor.datatype is BF16:  # the upper half of a float32
        single, joined = (
            (array.astype(np.uint32) << 16).view(np.float32) for array in (single, joined)
        )
    finite = np.isfinite(single)
    if not np.array_equal(finite, np.isfinite(joined)):
        return False
    expected = single[finite].astype(np.float64)
    largest = float(np.abs(expected).max(initial=0.0))
    return bool((np.abs(joined[finite] - expected) <= slack * tolerance * largest).all())
