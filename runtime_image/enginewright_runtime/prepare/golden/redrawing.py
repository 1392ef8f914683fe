"""Other values for golden samples with which outputs show no number. Pure.

A mask of any integers hides what a text has with (1 - mask) * the lowest float: all outputs are NaN then.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from enginewright_contract.manifest import TensorSpec

from enginewright_runtime.proof.golden_inputs import Ranges, Sample
from enginewright_runtime.proof.natural.drawing import fill_naturally, set_masks


def draw_others(
    samples: Sequence[Sample],
    inputs: Sequence[TensorSpec],
    ranges: Ranges,
    vocabularies: Mapping[str, int],
) -> Iterator[list[Sample]]:
    """Yield the samples with masks as such, with all integers as masks, and with natural values, where that differs."""

    def mask(sample: Sample, number: int, *, every: bool = False) -> Sample:
        return set_masks(sample, inputs, ranges, number, every=every)

    def fill(sample: Sample, number: int) -> Sample:
        return fill_naturally(sample, inputs, ranges, vocabularies, number)

    for change in (mask, partial(mask, every=True), fill):
        others = [change(sample, number) for number, sample in enumerate(samples)]
        if not _are_equal(samples, others):
            yield others


def _are_equal(samples: Sequence[Sample], others: Sequence[Sample]) -> bool:
    return all(
        np.array_equal(array, other.inputs[name])
        for sample, other in zip(samples, others, strict=True)
        for name, array in sample.inputs.items()
    )
