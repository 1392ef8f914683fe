"""Golden inferences over the path that requests take: the one proof that no server can talk away."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from enginewright.contract.manifest import Manifest
from numpy.typing import NDArray

from enginewright_runtime.parity import Tolerances, difference, scales_of
from enginewright_runtime.server.golden import Sample, type_name
from enginewright_runtime.sidecar.client import Answer, Client, UnreachableError
from enginewright_runtime.sidecar.protocol import (
    AnswerError,
    UnaskableError,
    decode,
    encode,
)
from enginewright_runtime.sidecar.samples import Samples

_log: Final = logging.getLogger(__name__)
_PROBE: Final = "Enginewright-Probe: 1\r\n"  # our server keeps a lane free for it
_LENGTH: Final = b"inference-header-content-length"
_BUSY: Final = frozenset({408, 429, 503, 504})  # backpressure: says nothing of the numbers

_Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one golden inference has shown."""

    sample: str
    seconds: float  # from the first byte sent to the last one received
    own_seconds: float  # of this process's CPU, to ask and compare
    wrong: str | None = None  # how the answer differs; None: it is right
    unanswered: str | None = None  # why there was none; `wrong` means nothing then
    gone: bool = False  # nobody listens
    late: bool = False  # the time was up after `seconds`
    error: float | None = None  # largest absolute error; None: no numbers to compare


class GoldenProbe:
    """Asks the server the golden samples in turn."""

    def __init__(
        self, client: Client, model: str, samples: Samples, manifest: Manifest, seconds: float
    ) -> None:
        self._client = client
        self._path = f"/v2/models/{model}/infer"
        self._samples = samples
        self._tolerances = Tolerances.of(manifest.recipe, manifest.precision)
        self._kinds = {name: type_name(each) for name, each in samples.types.outputs.items()}
        self._scales: dict[str, float] = {}
        if self._tolerances.across_samples:
            for name in samples.names:  # one at a time, for they may be large
                scales = scales_of({name: samples.read(name).expected}, self._kinds)
                self._scales |= {
                    output: max(scale, self._scales.get(output, 0.0))
                    for output, scale in scales.items()
                }
        self._seconds = seconds
        self._agreed: set[str] = set()  # outputs that have agreed once
        self._dice: set[str] = set()  # outputs that differ from themselves
        self.binary = True  # whether the server speaks the binary extension

    async def run(self) -> Finding:
        """Ask the next sample and compare its answer."""
        name = self._samples.next()
        try:
            sample = self._samples.read(name)
            return await self._compare(sample)
        except UnreachableError as error:
            seconds = self._seconds if error.late else 0.0
            why = f"the server {error}"
            return Finding(name, seconds, 0.0, unanswered=why, gone=error.gone, late=error.late)
        except (_UnansweredError, UnaskableError) as error:
            return Finding(name, 0.0, 0.0, unanswered=str(error))
        except (OSError, ValueError) as error:
            why = f"the golden samples cannot be read any more: {error}"
            return Finding(name, 0.0, 0.0, unanswered=why)

    async def _compare(self, sample: Sample) -> Finding:
        began_cpu = time.process_time()
        question = encode(sample, self._samples.types, binary=self.binary)
        began = time.monotonic()
        answer = await self._post(question.body, question.json_length)
        seconds = time.monotonic() - began
        wrong: str | None = None
        error: float | None = None
        try:
            arrays = self._read(answer, sample)
            wrong = self._difference(sample, arrays)
            if wrong is not None and (suspects := self._suspects(sample, arrays)):
                again = self._read(await self._post(question.body, question.json_length), sample)
                self._throw_dice(suspects, arrays, again)
                wrong = self._difference(sample, arrays)
            compared = {key: sample.expected[key] for key in sample.expected.keys() - self._dice}
            error = _largest_error(compared, arrays)
        except AnswerError as refusal:
            wrong = f"the answer to golden sample {sample.name!r} {refusal}"
        return Finding(
            sample.name, seconds, time.process_time() - began_cpu, wrong=wrong, error=error
        )

    async def _post(self, body: bytes, json_length: int | None) -> Answer:
        headers = _PROBE
        if json_length is None:
            headers += "Content-Type: application/json\r\n"
        else:
            headers += (
                "Content-Type: application/octet-stream\r\n"
                f"Inference-Header-Content-Length: {json_length}\r\n"
            )
        answer = await self._client.post(self._path, headers, body, self._seconds)
        if answer.status in _BUSY:
            raise _UnansweredError(f"the server is too busy for golden samples ({answer.status})")
        if answer.status != 200:
            raise _UnansweredError(f"the server answers golden samples with {answer.status}")
        return answer

    def _read(self, answer: Answer, sample: Sample) -> _Arrays:
        length = answer.headers.get(_LENGTH, b"")
        json_length = int(length) if length.isdigit() else None
        return decode(answer.body, json_length, sample.expected, self._samples.types)

    def _difference(self, sample: Sample, arrays: _Arrays) -> str | None:
        """Return how the answer is wrong; remember which outputs have been right."""
        for name, expected in sample.expected.items():
            if name in self._dice:
                continue
            differs = self._differs(name, expected, arrays[name])
            if differs is not None:
                return f"output {name!r} of golden sample {sample.name!r} {differs}"
            self._agreed.add(name)
        return None

    def _differs(self, name: str, want: NDArray[Any], have: NDArray[Any]) -> str | None:
        if want.dtype == have.dtype and np.array_equal(want, have):
            return None  # most backends repeat themselves, and this is twenty times as quick
        kind = self._kinds[name]
        allowed = self._tolerances.of_output(name, kind)
        return difference(want, have, allowed, kind, self._scales.get(name, 0.0))

    def _suspects(self, sample: Sample, arrays: _Arrays) -> list[str]:
        """Return the outputs that differ and have never agreed: they may throw dice."""
        return [
            name
            for name, expected in sample.expected.items()
            if name not in self._agreed | self._dice
            and expected.shape == arrays[name].shape
            and self._differs(name, expected, arrays[name]) is not None
        ]

    def _throw_dice(self, suspects: list[str], once: _Arrays, again: _Arrays) -> None:
        for name in suspects:
            if self._differs(name, once[name], again[name]) is not None:
                _log.warning("output %r gives other values on every run: not compared", name)
                self._dice.add(name)


class _UnansweredError(Exception):
    """An answer that says nothing about the numbers."""


def _largest_error(
    expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]]
) -> float | None:
    """Return the largest absolute error over the outputs that NumPy holds as floats."""
    errors = [
        _error(want, actual[name])
        for name, want in expected.items()
        if want.dtype.kind == "f" and want.shape == actual[name].shape
    ]
    return max(errors, default=None)


def _error(want: NDArray[Any], have: NDArray[Any]) -> float:
    if np.array_equal(want, have):
        return 0.0
    with np.errstate(invalid="ignore"):  # of infinities; difference() judges those
        gap = np.abs(want - have)
    return float(np.max(gap, initial=0.0, where=np.isfinite(gap)))
