"""Runs the model on every golden sample and profile shape before it is ready: parity and warm-up."""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.ort_messages import plain
from enginewright_runtime.proof.parity.comparison import Comparison, ParityFailure, scales_of
from enginewright_runtime.proof.parity.parts import Parts
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.session.device_errors import find_lost_device
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import GoldenSample, type_name
from enginewright_runtime.session.signature import Signature
from numpy.typing import NDArray

from enginewright_serving.manifest import list_profiles
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.warm_up import profile_points, step_points

_log: Final = logging.getLogger(__name__)
_REPEATS: Final = 3  # runs of every input: the first of a shape includes initialization
_REPEAT_SECONDS: Final = 2.0  # for all repeats; a slow model is measured by its first run
_STEP_SECONDS: Final = 60.0  # for the sizes between those of the profiles


class StartupProver:
    """Verifies and warms up one session."""

    def __init__(self, runner: Runner, signature: Signature, buckets: ComputeBuckets) -> None:
        self._runner = runner
        self._outputs = list(signature.outputs)
        self._types = {
            name: type_name(tensor.datatype) for name, tensor in signature.outputs.items()
        }
        self._buckets = buckets
        self._slowest = 0.0

    def prove(
        self,
        samples: list[GoldenSample],
        manifest: Manifest,
        progress: Callable[[str], None],
        *,
        steps: bool = False,
        parts: Parts | None = None,
    ) -> float:
        """Run every golden sample and every profile shape; return the slowest run in seconds, or raise StageFailure.

        `parts` are what is expected of the parts of the golden outputs. `steps`: also run 1, 2, 4, … rows, since the backend prepares each size when it first runs.
        """
        scales = scales_of({sample.name: sample.expected for sample in samples}, self._types)
        tolerances = Tolerances.of(manifest.recipe, manifest.served_precision)
        comparison = Comparison(
            "prepared", tolerances, self._types, scales, manifest.varying, parts
        )
        for number, sample in enumerate(samples, 1):
            progress(f"running golden sample {number} of {len(samples)}")
            arrays = self._run(sample.feeds, f"golden sample {sample.name!r}")
            self._compare(sample, dict(zip(self._outputs, arrays, strict=True)), comparison)
        verdict = comparison.verdict()
        _refuse(verdict.worst)
        if not verdict.compared:
            _log.warning(
                "no output can be compared: all are empty or not finite, or vary in an unknown distribution"
            )
        points = [(f"golden sample {sample.name!r}", sample.feeds) for sample in samples]
        for label, feeds in profile_points(
            [sample.feeds for sample in samples], list_profiles(manifest)
        ):
            progress(f"warming up {label}")
            self._run(feeds, label)
            points.append((label, feeds))
        if steps:
            points += self._run_steps([feeds for _, feeds in points], manifest, progress)
        slowest = self._slowest
        progress("warming up once more")
        self._repeat(points)
        return slowest

    def _run_steps(
        self, feeds_run: list[Feeds], manifest: Manifest, progress: Callable[[str], None]
    ) -> list[tuple[str, Feeds]]:
        began = time.monotonic()
        done: list[tuple[str, Feeds]] = []
        points = step_points(feeds_run, list_profiles(manifest))
        for number, (label, feeds) in enumerate(points, 1):
            if time.monotonic() - began > _STEP_SECONDS:
                _log.warning(
                    "%d of %d sizes were not run before requests",
                    len(points) - number + 1,
                    len(points),
                )
                break
            progress(f"warming up {label}, {number} of {len(points)}")
            try:
                self._run(feeds, label)
            except StageFailure as failure:
                if failure.reason is Reason.DEVICE_LOST:
                    raise
                _log.warning("not warmed up: %s", failure.cause)
                continue
            done.append((label, feeds))
        return done

    def _repeat(self, points: list[tuple[str, Feeds]]) -> None:
        began = time.monotonic()
        for number, (label, feeds) in enumerate(points * (_REPEATS - 1)):
            # the first repeat always runs: the first run of a process is not representative
            if number and time.monotonic() - began > _REPEAT_SECONDS:
                return
            self._run(feeds, label)

    def _run(self, feeds: Feeds, label: str) -> list[NDArray[Any]]:
        began = time.monotonic()
        try:
            arrays = self._runner.run(self._outputs, feeds)
        except Exception as error:
            # ONNX Runtime's exceptions have no common base class but Exception
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
            lost = find_lost_device(str(error))
            raise StageFailure(
                Reason.DEVICE_LOST if lost else Reason.PARITY_FAILED,
                f"the backend fails on {label} ({shapes}): {lost or plain(str(error))}",
            ) from error
        seconds = time.monotonic() - began
        self._slowest = max(self._slowest, seconds)
        self._buckets.add_warm_up(feeds, seconds)
        return arrays

    def _compare(
        self, sample: GoldenSample, actual: dict[str, NDArray[Any]], comparison: Comparison
    ) -> None:
        comparison.add(sample.name, sample.expected, actual, lambda: self._rerun(sample))
        _refuse(comparison.failure)

    def _rerun(self, sample: GoldenSample) -> dict[str, NDArray[Any]]:
        arrays = self._runner.run(self._outputs, sample.feeds)
        return dict(zip(self._outputs, arrays, strict=True))


def _refuse(failure: ParityFailure | None) -> None:
    if failure is not None:
        raise StageFailure(Reason.PARITY_FAILED, f"{failure} against ONNX Runtime's CPU provider")
