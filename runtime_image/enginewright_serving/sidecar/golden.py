"""Golden inferences on the path of clients' requests, which do not rely on the server's reports."""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_runtime.proof.parity.comparison import difference
from enginewright_runtime.proof.parity.fills import find_fill
from enginewright_runtime.proof.parity.measuring import has_numbers
from enginewright_runtime.proof.parity.parts_judge import PartsJudge
from enginewright_runtime.proof.parity.tolerances import Tolerance, Tolerances
from enginewright_runtime.proof.parity.variation import VaryingOutputs
from enginewright_runtime.session.padding import PaddedShapes
from enginewright_runtime.session.samples import GoldenSample, type_name
from numpy.typing import NDArray

from enginewright_serving.sidecar.client import UnreachableError
from enginewright_serving.sidecar.inferences import FailsError, Inferences, UnansweredError
from enginewright_serving.sidecar.json_tensors import TooLargeError
from enginewright_serving.sidecar.pairs import Pair, Pairs
from enginewright_serving.sidecar.protocol import ResponseError, UnencodableError, timing
from enginewright_serving.sidecar.samples import GoldenSamples

_PIECE: Final = 1 << 18  # elements that are compared at a time

_Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of one golden inference."""

    sample: str
    seconds: float = 0.0  # from the first byte sent to the last one received
    own_seconds: float = 0.0  # CPU time of the sidecar, to encode and compare
    queued: float = 0.0  # of `seconds`: waiting for the model, as the server reports
    compute: float | None = None  # of `seconds`: in the model, if the server reports it
    wrong: str | None = None  # how the outputs differ, if they do
    not_run: str | None = None  # why there are no outputs; `wrong` is then meaningless
    unreachable: bool = False  # connection refused
    late: bool = False  # timed out after `seconds`
    fails: bool = False  # the model no longer runs the sample; `not_run` says why
    reason: Reason | None = None  # with `fails`, from the server's error
    error: float | None = None  # largest absolute error over the numeric outputs
    inputs: str = ""  # digest of the sample's inputs, if it has run
    compared: int = 0  # outputs of which finite elements were compared, by value or by distribution
    # outputs without finite elements, of which the form was compared
    empty: frozenset[str] = frozenset()
    paired: bool = False  # in a batch with other inputs: its times are not those of the sample

    @property
    def cost(self) -> float:
        """Seconds of the server's time that it took, waiting excluded."""
        return max(0.0, self.seconds - self.queued) if self.compute is None else self.compute


class GoldenProbe:
    """Runs golden samples on the server."""

    def __init__(
        self,
        inferences: Inferences,
        samples: GoldenSamples,
        manifest: Manifest,
    ) -> None:
        self._inferences = inferences
        self._samples = samples
        self._pairs = Pairs(samples)
        self._tolerances = Tolerances.of(manifest.recipe, manifest.served_precision)
        self._kinds = {name: type_name(output) for name, output in samples.types.outputs.items()}
        self._parts = PartsJudge(samples.parts)
        self._ran: set[str] = set()  # samples whose parts are known
        self._scales: dict[str, float] = {}
        if self._tolerances.across_samples:
            self._scales = samples.largest_values()
        self._varying = VaryingOutputs(
            manifest.varying or (), self._kinds, self._find_tolerance, repeated=True
        )

    async def run(
        self, name: str, defer: float, batch: int = 1, padding: PaddedShapes | None = None
    ) -> ProbeResult:
        """Run a sample and compare its outputs; our server may defer it for `defer` seconds.

        With a `batch` of more rows than it has, it runs in one with another row, if that is possible, and with `padding`
        in turns with a longer one.
        """
        began_cpu = time.process_time()
        try:
            sample = self._samples.read(name)
            pair = self._pairs.make(sample, batch, padding)
        except (OSError, ValueError) as error:
            return ProbeResult(name, not_run=f"cannot read the golden samples: {error}")
        own_seconds = time.process_time() - began_cpu
        result = await self._run(sample, defer, pair)
        if pair is None:
            return result
        if result.wrong is None:
            self._pairs.advance(name)
        own_seconds += result.own_seconds
        return replace(
            result, own_seconds=own_seconds, paired=True, fails=False, late=False, reason=None
        )

    async def _run(self, sample: GoldenSample, defer: float, pair: Pair | None) -> ProbeResult:
        name = sample.name
        try:
            return await self._compare(sample, defer, pair)
        except UnreachableError as error:
            seconds = self._inferences.seconds if error.late else 0.0
            why = f"the server {error}"
            return ProbeResult(
                name, seconds, not_run=why, unreachable=error.unreachable, late=error.late
            )
        except FailsError as error:
            return ProbeResult(name, not_run=str(error), fails=True, reason=error.reason)
        except (UnansweredError, UnencodableError) as error:
            return ProbeResult(name, not_run=str(error))
        except TooLargeError as error:
            return ProbeResult(name, not_run=f"the response to golden sample {name!r} {error}")
        except (OSError, ValueError) as error:
            return ProbeResult(name, not_run=f"cannot read the golden samples: {error}")

    async def _compare(self, sample: GoldenSample, defer: float, pair: Pair | None) -> ProbeResult:
        began_cpu = time.process_time()
        types = self._samples.types
        inputs = self._samples.inputs_digest(sample)
        request = self._inferences.encode(pair.sample if pair else sample, types)
        own_seconds = time.process_time() - began_cpu  # without waiting: other checks run meanwhile
        began = time.monotonic()
        response = await self._inferences.post(request, defer)
        seconds = time.monotonic() - began
        began_cpu = time.process_time()
        queued, compute = timing(response)
        wrong: str | None = None
        error: float | None = None
        fixed = {key: want for key, want in sample.expected.items() if key not in self._varying}
        empty = frozenset(
            key for key, want in fixed.items() if not has_numbers(want, self._kinds[key])
        )
        trial = self._varying.trial(sample.name, sample.expected)
        try:
            arrays = self._inferences.read(response, sample.expected, types)
            if pair:
                arrays = pair.take(arrays)
            # most backends are deterministic, and this is twenty times faster than a comparison
            changed = [name for name in fixed if not _equal(fixed[name], arrays[name])]
            differences = {name: self._differs(name, fixed[name], arrays[name]) for name in changed}
            wrong = _describe(differences, sample.name, pair.where if pair else "")
            error = _largest_error(fixed, arrays)
            if pair is None and wrong is None:
                wrong = self._judge_parts(sample.name, fixed, arrays, changed)
            # stop at the first wrong output: more runs for distributions would only load the server
            while trial.take(arrays) and wrong is None and not trial.faults:
                del response, arrays  # one at a time, since they may be large
                response = await self._inferences.post(request, defer)
                arrays = self._inferences.read(response, sample.expected, types)
            faults = {name: fault.full_description for name, fault in trial.faults.items()}
            wrong = wrong or _describe(faults, sample.name)
        except ResponseError as refusal:
            wrong = f"the response to golden sample {sample.name!r} {refusal}"
        return ProbeResult(
            sample.name,
            seconds,
            own_seconds + time.process_time() - began_cpu,
            queued=queued,
            compute=compute,
            wrong=wrong,
            error=error,
            inputs=inputs,
            compared=len(fixed) - len(empty) + len(trial.runs),
            empty=empty,
        )

    def _judge_parts(
        self,
        sample: str,
        expected: Mapping[str, NDArray[Any]],
        actual: Mapping[str, NDArray[Any]],
        changed: Collection[str],
    ) -> str | None:
        """Judge the parts of the outputs over the last runs of all samples, once all have run."""
        for name, want in expected.items():
            if name in changed:
                self._parts.add(sample, name, want, actual[name], self._kinds[name])
            else:
                self._parts.add_equal(sample, name, want, self._kinds[name])
        self._ran.add(sample)
        if len(self._ran) < len(self._samples.names):
            return None
        for name, want in expected.items():
            allowed = self._find_tolerance(name, want)
            if fault := self._parts.find_fault(name, allowed):
                return _describe({name: fault.describe(allowed)}, fault.sample)
        return None

    def _find_tolerance(self, name: str, want: NDArray[Any]) -> Tolerance:
        allowed = self._tolerances.of_output(name, self._kinds[name])
        return self._parts.fit(name, want.ndim, allowed)

    def _differs(self, name: str, want: NDArray[Any], have: NDArray[Any]) -> str | None:
        allowed = self._find_tolerance(name, want)
        return difference(want, have, allowed, self._kinds[name], self._scales.get(name, 0.0))


def _describe(differences: Mapping[str, str | None], sample: str, where: str = "") -> str | None:
    for name, differs in differences.items():
        if differs is not None:
            return f"output {name!r} of golden sample {sample!r}{where} {differs}"
    return None


def _largest_error(
    expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]]
) -> float | None:
    errors = [
        _largest_difference(want, actual[name])
        for name, want in expected.items()
        if want.dtype.kind == "f" and want.shape == actual[name].shape
    ]
    return max(errors, default=None)


def _equal(want: NDArray[Any], have: NDArray[Any]) -> bool:
    """Return whether two arrays have the same type, shape and elements; NaN is never equal."""
    if want.dtype != have.dtype or want.shape != have.shape:
        return False
    return all(np.array_equal(first, second) for first, second in _chunks(want, have))


def _largest_difference(want: NDArray[Any], have: NDArray[Any]) -> float:
    """Return the largest finite absolute error of `have`, of the shape of `want`, in its units."""
    largest = 0.0
    if _equal(want, have):
        return largest
    fill = find_fill(want, None)
    for pair in _chunks(want, have):
        first, second = fill.hide_both(*pair)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities are compared elsewhere
            gap = np.abs(first - second)
        largest = max(largest, float(np.max(gap, initial=0.0, where=np.isfinite(gap))))
    return largest


def _chunks(want: NDArray[Any], have: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield both in pieces, so that a comparison needs only a few megabytes more."""
    first, second = want.reshape(-1), have.reshape(-1)
    for start in range(0, first.size, _PIECE):
        yield first[start : start + _PIECE], second[start : start + _PIECE]
