"""Judges the source by the parts of the expected outputs: as wholes they were compared when it ran, before its parts were known.

What a part is expected to move by is that of the expected outputs: a column that the source has lost does not move.
"""

from dataclasses import replace
from pathlib import Path

from enginewright_contract.manifest import TensorSpec
from enginewright_contract.task import Recipe

from enginewright_runtime.proof.golden_run import EXPECTED, INPUTS, OUTPUTS
from enginewright_runtime.proof.parity.axes import select_axes
from enginewright_runtime.proof.parity.comparison import Comparison, scales_of
from enginewright_runtime.proof.parity.parts import PARTS, Parts, read_parts
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.tolerances import Tolerances
from enginewright_runtime.session.arrays import Arrays, read_arrays


def judge_expected(
    folder: Path,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    recipe: Recipe,
    precision: str,
) -> str | None:
    """Return the worst part of the golden outputs that differs from expected.npz; None without any. Called in a child process."""
    expected, feeds = read_arrays(folder / EXPECTED), read_arrays(folder / INPUTS)
    golden = read_arrays(folder / OUTPUTS)
    expected = {sample: arrays for sample, arrays in expected.items() if sample in golden}
    if not expected:
        return None
    dtypes = {spec.name: spec.dtype for spec in outputs}
    tolerances, scales = Tolerances.of(recipe, precision), scales_of(expected, dtypes)
    axes = select_axes(inputs, outputs, feeds[next(iter(expected))], expected)
    builder = PartsBuilder(axes, dtypes, tolerances, scales)
    for sample, arrays in expected.items():
        builder.add(arrays, None, feeds[sample])
    parts = _take_errors(builder.build(), read_parts(folder / PARTS))
    comparison = Comparison("expected", tolerances, dtypes, scales, (), parts)
    for sample, arrays in expected.items():
        comparison.add(sample, _select(arrays, parts), golden[sample])
    failures = (item for item in comparison.verdict().failures if item.figure == "part")
    return next(map(str, failures), None)


def _take_errors(expected: Parts, measured: Parts) -> Parts:
    """Return the expected parts with what rounding costs, which was measured on the source; others are left out.

    Where the source's values are no names and the expected ones are, that is no less than it costs names.
    """
    errors = {(output, item.axis): item for output, items in measured.items() for item in items}
    return {
        output: taken
        for output, items in expected.items()
        if (
            taken := tuple(
                replace(
                    item,
                    error=own.error,
                    count=own.count,
                    own_share=own.own_share,
                    figures=own.figures,
                )
                for item in items
                if (own := errors.get((output, item.axis))) is not None
            )
        )
    }


def _select(arrays: Arrays, parts: Parts) -> Arrays:
    return {name: array for name, array in arrays.items() if name in parts}
