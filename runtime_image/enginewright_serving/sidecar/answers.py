"""Compares a canary's answers with the golden outputs of the revision that serves, once.

The samples run like the pod's own, one at a time and deferrable, after the pod is admitted. The result depends
on the artefacts only, so a restart of the server does not repeat it. A lost response is retried, unless the
server's process ended with it: the same inputs would end it again.
"""

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Final

import orjson
from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.manifest import MANIFEST_NAME, Manifest
from enginewright_contract.measurements import AnswerChange, OutputChange
from enginewright_contract.task import STABLE_FAILURE
from enginewright_runtime.session.samples import GoldenSample, type_name
from pydantic import ValidationError

from enginewright_serving.sidecar.answer_change import (
    change,
    free_axes,
    incompatibility,
    most_changed,
    worst,
)
from enginewright_serving.sidecar.client import UnreachableError
from enginewright_serving.sidecar.inferences import FailsError, Inferences, UnansweredError
from enginewright_serving.sidecar.json_tensors import TooLargeError
from enginewright_serving.sidecar.protocol import ResponseError, UnencodableError
from enginewright_serving.sidecar.samples import GoldenSamples

_log: Final = logging.getLogger(__name__)
# The outputs of a sample and of its answer fit the memory that every sidecar has beside its own
_LEAST_LARGEST: Final = 48 * 1024 * 1024
_MOST_LOST: Final = 3  # turns in which the response to one sample is lost


class _IncomparableError(Exception):
    """The reason why no comparison is possible."""


class AnswerComparison:
    """The comparison with one other revision."""

    def __init__(
        self, inferences: Inferences, own: Manifest, own_largest: int, folder: Path, key: str
    ) -> None:
        """Compare with the golden samples in `folder`, of prepared model `key`; there is memory for `own_largest` bytes of outputs."""
        self._inferences = inferences
        self._own = own
        self._largest = max(own_largest, _LEAST_LARGEST)
        self._folder = folder
        self._key = key
        self._samples: GoldenSamples | None = None
        self._names: list[str] = []  # samples that have not run
        self._compared = 0
        self._lost = 0  # attempts in which the response to the next sample was lost
        self._lost_by = 0  # number of the server's process that lost the last one
        self._changes: dict[str, OutputChange] = {}
        self._varying: set[str] = set()
        self._free: dict[str, tuple[bool, ...]] = {}
        self._largest_values: dict[str, float] = {}
        self.result: AnswerChange | None = None  # once it is complete

    async def step(self, defer: float, process: int) -> None:
        """Run the next sample, which our server may defer for `defer` seconds; `process` changes with its restart."""
        if self.result is not None:
            return
        try:
            if self._samples is None:
                # in a thread: tens of megabytes are read, and /readyz must answer meanwhile
                self._samples = await asyncio.to_thread(self._open)
            await self._run(self._samples, self._names[0], defer, process)
        except UnansweredError as busy:
            _log.info("the comparison with the stable revision waits: %s", busy)
            return
        except _IncomparableError as error:
            self._fail(str(error))
            return
        except (OSError, ValueError) as error:
            self._fail(f"the golden samples of the stable revision are unusable: {error}")
            return
        self._compared += 1
        self._lost = 0
        del self._names[0]
        if not self._names:
            outputs = most_changed(self._changes.values())
            self._end(AnswerChange(prepared_key=self._key, samples=self._compared, outputs=outputs))

    def _open(self) -> GoldenSamples:
        with contextlib.suppress(OSError):
            why = (self._folder / STABLE_FAILURE).read_text()
            raise _IncomparableError(f"the golden samples were not fetched: {why}")
        try:
            manifest = Manifest.model_validate_json((self._folder / MANIFEST_NAME).read_bytes())
        except (OSError, ValidationError):
            raise _IncomparableError("the golden samples were not fetched") from None
        if why := incompatibility(self._own, manifest):
            raise _IncomparableError(why)
        samples = GoldenSamples(self._folder, manifest)
        if samples.largest_outputs > self._largest:
            raise _IncomparableError(
                "the golden outputs are larger than the sidecar's memory allows"
            )
        self._varying = {
            output.name for output in (*(self._own.varying or ()), *(manifest.varying or ()))
        }
        self._free = free_axes(manifest)
        self._largest_values = samples.largest_values()
        self._names = list(samples.names)
        return samples

    async def _run(self, samples: GoldenSamples, name: str, defer: float, process: int) -> None:
        """Compare one sample; raises UnansweredError, or _IncomparableError without outputs to compare."""
        sample = f"golden sample {name!r} of the stable revision"
        if self._lost and self._lost_by != process:
            raise _IncomparableError(f"the server restarted when {sample} had been sent")
        try:
            await self._compare(samples, name, defer)
        except UnreachableError as error:
            why = f"with {sample}, the server {error}"
            if error.sent:
                self._lost, self._lost_by = self._lost + 1, process
            if self._lost < _MOST_LOST:
                raise UnansweredError(why) from error
            raise _IncomparableError(f"{why}, {_MOST_LOST} times") from error
        except FailsError as error:
            why = f"the new revision does not run {sample}: {_error_of(error)}"
            raise _IncomparableError(why) from error
        except (ResponseError, TooLargeError) as error:
            raise _IncomparableError(f"the response to {sample} {error}") from error
        except UnencodableError as error:
            raise _IncomparableError(f"{sample} cannot be sent: {error}") from error

    async def _compare(self, samples: GoldenSamples, name: str, defer: float) -> None:
        types = samples.types
        read = samples.read(name)
        expected = {key: want for key, want in read.expected.items() if key not in self._varying}
        if not expected:
            raise _IncomparableError("every output varies from run to run")
        request = self._inferences.encode(GoldenSample(name, read.feeds, expected), types)
        response = await self._inferences.post(request, defer)
        arrays = self._inferences.read(response, expected, types)
        for key, want in expected.items():
            kind = type_name(types.outputs[key])
            # likewise
            difference = await asyncio.to_thread(
                change,
                *(key, want, arrays[key], kind),
                free=self._free.get(key, ()),
                largest=self._largest_values.get(key, 0.0),
            )
            before = self._changes.get(key)
            self._changes[key] = worst(before, difference) if before else difference

    def _fail(self, why: str) -> None:
        _log.warning("answers are not compared with the stable revision: %s", why)
        self._end(AnswerChange(prepared_key=self._key, failure=why[:TEXT_LENGTH]))

    def _end(self, result: AnswerChange) -> None:
        self._samples = None  # which frees their memory
        self.result = result


def _error_of(failure: FailsError) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(orjson.loads(failure.body)["error"])
    return str(failure)
