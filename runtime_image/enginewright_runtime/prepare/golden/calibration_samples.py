"""Golden samples of the user's calibration data, which are closer to requests than what is drawn."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import Calibration, ShapeProfile
from numpy.typing import NDArray

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.prepare.quantize import calibration
from enginewright_runtime.proof.golden_inputs import Sample
from enginewright_runtime.proof.natural.drawing import LARGEST, PIECES, NaturalSamples

_log: Final = logging.getLogger(__name__)


def read_calibration(
    folder: Path,
    declared: Calibration,
    inputs: Sequence[TensorSpec],
    profiles: Sequence[ShapeProfile],
) -> NaturalSamples:
    """Return a few samples of the data, of shapes that the profiles have; none if it is invalid, which `quantize` reports."""
    try:
        data = calibration.read(folder, inputs, limit=PIECES, preprocessing=declared.preprocessing)
        samples = [
            Sample(f"calibration-{number}", feeds, {})
            for number, feeds in enumerate(data, 1)
            if _fits(feeds, profiles)
        ]
    except StageFailure as failure:
        _log.info("no golden samples of the calibration data: %s", failure.cause)
        return NaturalSamples()
    largest = max((sample.input_bytes for sample in samples), default=1)
    return NaturalSamples(tuple(samples[: LARGEST // max(1, largest)]))


def _fits(feeds: Mapping[str, NDArray[Any]], profiles: Sequence[ShapeProfile]) -> bool:
    return all(
        low <= size <= high
        for profile in profiles
        for size, low, high in zip(
            feeds[profile.input].shape, profile.min, profile.max, strict=True
        )
    )
