"""Rules on the model's behaviour in one run, at the smallest of its shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginewright_contract.manifest import TensorSpec
from enginewright_contract.report import name_nodes

from enginewright_runtime.graph.raw.graphs import PLACEHOLDER_DIMENSIONS
from enginewright_runtime.rules.base import Hit
from enginewright_runtime.rules.text import show

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ObservedRun:
    """One run."""

    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    numeric: tuple[str, ...]  # floating-point outputs
    nan: tuple[str, ...]  # those of them that have NaN


def check_declared_shapes(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    ranked: frozenset[str],
    observed: ObservedRun,
) -> Hit | None:
    """Compare the outputs' shapes with the declared ones; `ranked` are the outputs that declare one."""
    sizes = _sizes(inputs, observed.inputs)
    wrong = [
        f"'{show(spec.name)}' is declared as {_format_shape(spec.shape)} and has shape {list(shape)}"
        for spec in outputs
        if spec.name in ranked
        and (shape := observed.outputs.get(spec.name)) is not None
        and not _fits(spec.shape, shape, sizes)
    ]
    if not wrong:
        return None
    shapes = ", ".join(f"{show(name)} {list(shape)}" for name, shape in observed.inputs.items())
    return Hit(f"output {name_nodes(wrong)}, for inputs {shapes}")


def nan_answers(observed: ObservedRun, nan_in_weights: str | None) -> Hit | None:
    """Find NaN in every output, if weights have NaN."""
    if nan_in_weights is None or not observed.numeric or observed.nan < observed.numeric:
        return None
    return Hit(f"every output has NaN because {nan_in_weights}")


def _sizes(inputs: Sequence[TensorSpec], shapes: Mapping[str, Shape]) -> dict[str, int]:
    observed: dict[str, set[int]] = {}
    for spec in inputs:
        for dimension, size in zip(spec.shape, shapes.get(spec.name, ()), strict=False):
            if isinstance(dimension, str) and dimension not in PLACEHOLDER_DIMENSIONS:
                observed.setdefault(dimension, set()).add(size)
    return {name: sizes.pop() for name, sizes in observed.items() if len(sizes) == 1}


def _fits(declared: Sequence[int | str | None], shape: Shape, sizes: Mapping[str, int]) -> bool:
    if len(declared) != len(shape):
        return False
    for dimension, size in zip(declared, shape, strict=True):
        expected = sizes.get(dimension) if isinstance(dimension, str) else dimension
        if expected is not None and expected != size:
            return False
    return True


def _format_shape(declared: Sequence[int | str | None]) -> str:
    dimensions = ("?" if size is None else show(str(size)) for size in declared)
    return f"[{', '.join(dimensions)}]"
