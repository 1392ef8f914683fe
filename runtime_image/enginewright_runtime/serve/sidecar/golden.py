"""Golden inferences over the path that requests take: the one proof that no server can talk away."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginewright.contract.manifest import Manifest
from enginewright.contract.reasons import Reason
from numpy.typing import NDArray

from enginewright_runtime.proof.parity import (
    Repetition,
    Tolerances,
    Trial,
    difference,
    form_fault,
    scales_of,
)
from enginewright_runtime.serve.probe_token import HEADER
from enginewright_runtime.serve.sidecar.client import Answer, Client, UnreachableError
from enginewright_runtime.serve.sidecar.pieces import equal, largest_error
from enginewright_runtime.serve.sidecar.protocol import (
    AnswerError,
    Question,
    UnaskableError,
    decode,
    encode,
    timing,
)
from enginewright_runtime.serve.sidecar.samples import Samples
from enginewright_runtime.session.device_errors import lost_device
from enginewright_runtime.session.samples import Sample, type_name

_LENGTH: Final = b"inference-header-content-length"
_BUSY: Final = frozenset({408, 429, 503, 504})  # backpressure: says nothing of the numbers
_ERROR_BYTES: Final = 64 * 1024  # of an error that are read
_FAILS: Final = frozenset({400, 500})  # inputs that have run are refused, or their run fails

_Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one golden inference has shown."""

    sample: str
    seconds: float  # from the first byte sent to the last one received
    own_seconds: float  # of this process's CPU, to ask and compare
    queued: float = 0.0  # of `seconds`: waiting for the model, as the server tells
    compute: float | None = None  # of `seconds`: in the model, likewise; None: it does not tell
    wrong: str | None = None  # how the answer differs; None: it is right
    unanswered: str | None = None  # why there was none; `wrong` means nothing then
    gone: bool = False  # nobody listens
    late: bool = False  # the time was up after `seconds`
    fails: bool = False  # the model does not run it any more; `unanswered` says how
    reason: Reason | None = None  # with `fails`, where the server's error tells
    error: float | None = None  # largest absolute error; None: no numbers to compare
    compared: int = 0  # outputs that were compared, in values or in distribution

    @property
    def cost(self) -> float:
        """Seconds that it has taken of the server's, waiting excluded."""
        return max(0.0, self.seconds - self.queued) if self.compute is None else self.compute


class GoldenProbe:
    """Asks the server golden samples."""

    def __init__(
        self,
        client: Client,
        model: str,
        samples: Samples,
        manifest: Manifest,
        seconds: float,
        token: str = "",
    ) -> None:
        """Make it; `seconds` is how long an answer may take, `token` opens our server's lane."""
        self._client = client
        self._probe = f"{HEADER}: {token}\r\n" if token else ""
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
        self._spreads = {
            each.name: {spread.sample: spread for spread in each.spreads}
            for each in manifest.varying or ()
        }
        self._repetitions: dict[tuple[str, str], Repetition] = {}  # by sample and varying output
        self.binary = True  # whether the server speaks the binary extension

    async def run(self, name: str, defer: float) -> Finding:
        """Ask a sample and compare its answer; our server defers it for `defer` seconds at most."""
        try:
            sample = self._samples.read(name)
            return await self._compare(sample, defer)
        except UnreachableError as error:
            seconds = self._seconds if error.late else 0.0
            why = f"the server {error}"
            return Finding(name, seconds, 0.0, unanswered=why, gone=error.gone, late=error.late)
        except _FailsError as error:
            return Finding(name, 0.0, 0.0, unanswered=str(error), fails=True, reason=error.reason)
        except (_UnansweredError, UnaskableError) as error:
            return Finding(name, 0.0, 0.0, unanswered=str(error))
        except (OSError, ValueError) as error:
            why = f"the golden samples cannot be read any more: {error}"
            return Finding(name, 0.0, 0.0, unanswered=why)

    async def _compare(self, sample: Sample, defer: float) -> Finding:
        began_cpu = time.process_time()
        question = encode(sample, self._samples.types, binary=self.binary)
        own_seconds = (
            time.process_time() - began_cpu
        )  # not while waiting: the other checks run then
        began = time.monotonic()
        answer = await self._post(question, defer)
        seconds = time.monotonic() - began
        began_cpu = time.process_time()
        queued, compute = timing(answer)
        wrong: str | None = None
        error: float | None = None
        fixed = {key: want for key, want in sample.expected.items() if key not in self._spreads}
        trials = self._trials(sample)
        try:
            arrays = self._read(answer, sample)
            wrong = self._difference(sample, arrays)
            error = _largest_error(fixed, arrays)
            waiting = {name for name, trial in trials.items() if trial.take(arrays[name])}
            while waiting and wrong is None:
                del answer, arrays  # one at a time, for they may be large
                answer = await self._post(question, defer)
                arrays = self._read(answer, sample)
                waiting = {name for name in waiting if trials[name].take(arrays[name])}
            wrong = wrong or _wrong(trials, sample.name)
        except AnswerError as refusal:
            wrong = f"the answer to golden sample {sample.name!r} {refusal}"
        return Finding(
            sample.name,
            seconds,
            own_seconds + time.process_time() - began_cpu,
            queued=queued,
            compute=compute,
            wrong=wrong,
            error=error,
            compared=len(fixed) + len(trials),
        )

    async def _post(self, question: Question, defer: float) -> Answer:
        headers = self._probe
        if defer:
            headers += f"Enginewright-Defer: {defer * 1000:.0f}\r\n"
        if question.json_length is None:
            headers += "Content-Type: application/json\r\n"
        else:
            headers += (
                "Content-Type: application/octet-stream\r\n"
                f"Inference-Header-Content-Length: {question.json_length}\r\n"
            )
        answer = await self._client.post(self._path, headers, question.parts, self._seconds + defer)
        if answer.status in _BUSY:
            raise _UnansweredError(f"the server is too busy for golden samples ({answer.status})")
        if answer.status in _FAILS:
            raise _FailsError(answer)
        if answer.status != 200:
            raise _UnansweredError(f"the server answers golden samples with {answer.status}")
        return answer

    def _read(self, answer: Answer, sample: Sample) -> _Arrays:
        length = answer.headers.get(_LENGTH, b"")
        json_length = int(length) if length.isdigit() else None
        return decode(answer.body, json_length, sample.expected, self._samples.types)

    def _difference(self, sample: Sample, arrays: _Arrays) -> str | None:
        """Return how the answer is wrong; of outputs that vary, in form alone."""
        for name, expected in sample.expected.items():
            if name in self._spreads:
                differs = self._form_differs(sample.name, name, expected, arrays[name])
            else:
                differs = self._differs(name, expected, arrays[name])
            if differs is not None:
                return f"output {name!r} of golden sample {sample.name!r} {differs}"
        return None

    def _form_differs(
        self, sample: str, name: str, want: NDArray[Any], have: NDArray[Any]
    ) -> str | None:
        spread = self._spreads[name].get(sample)
        shape = spread.shape if spread else (None,) * want.ndim
        fault = form_fault(want, have, self._kinds[name], shape)
        return fault.in_full if fault else None

    def _trials(self, sample: Sample) -> dict[str, Trial]:
        """Return a trial of each output that varies and whose distribution is known.

        That runs differ shows over the probes of a sample: it is not asked twice for that.
        """
        trials = {}
        for name, spreads in self._spreads.items():
            spread = spreads.get(sample.name)
            if name in sample.expected and spread is not None and spread.ranges:
                kind = self._kinds[name]
                allowed = self._tolerances.of_output(name, kind)
                repetition = self._repetitions.setdefault((sample.name, name), Repetition())
                want = sample.expected[name]
                trials[name] = Trial(spread, want, allowed, kind, repetition)
        return trials

    def _differs(self, name: str, want: NDArray[Any], have: NDArray[Any]) -> str | None:
        if equal(want, have):
            return None  # most backends repeat themselves, and this is twenty times as quick
        kind = self._kinds[name]
        allowed = self._tolerances.of_output(name, kind)
        return difference(want, have, allowed, kind, self._scales.get(name, 0.0))


class _UnansweredError(Exception):
    """An answer that says nothing about the numbers."""


class _FailsError(Exception):
    """The server does not run what it has run before."""

    def __init__(self, answer: Answer) -> None:
        cause = lost_device(answer.body[:_ERROR_BYTES].decode(errors="replace"))
        self.reason = Reason.DEVICE_LOST if cause else Reason.RUNS_FAIL
        said = f": {cause}" if cause else ""
        super().__init__(f"the server answers golden samples with {answer.status}{said}")


def _wrong(trials: Mapping[str, Trial], sample: str) -> str | None:
    found = ((name, trial.wrong) for name, trial in trials.items() if trial.wrong is not None)
    return next(
        (f"output {name!r} of golden sample {sample!r} {words}" for name, words in found), None
    )


def _largest_error(
    expected: Mapping[str, NDArray[Any]], actual: Mapping[str, NDArray[Any]]
) -> float | None:
    """Return the largest absolute error over the outputs that NumPy holds as floats."""
    errors = [
        largest_error(want, actual[name])
        for name, want in expected.items()
        if want.dtype.kind == "f" and want.shape == actual[name].shape
    ]
    return max(errors, default=None)
