"""Runs a model and observes the values inside it: their limits and distributions.

ONNX Runtime's own calibrators keep every activation of every sample until the end (3 to 3.5 GB for
a text detector). Here one sample, and as many values as fit into a fixed amount of memory, are
observed at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from enginewright_runtime.core.failure import SessionError
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.scoped.scopes import Names, Scope
from enginewright_runtime.session.operator_signatures import element_types
from enginewright_runtime.session.reference import load_changed

Array = NDArray[Any]
Feeds = Mapping[str, Array]
BINS: Final = 2048  # as in TensorRT's entropy calibrator
_RUN_BYTES: Final = 256 << 20  # of activations that are outputs of one run


@dataclass
class ValueLimits:
    """The smallest and largest finite value observed; infinite limits before the first."""

    low: float = float("inf")
    high: float = float("-inf")
    elements: int = 0  # of the largest sample

    @property
    def seen(self) -> bool:
        """Tell whether a finite value was observed."""
        return self.low <= self.high

    @property
    def largest(self) -> float:
        """Return the largest absolute value."""
        return max(abs(self.low), abs(self.high)) if self.seen else 0.0

    def add(self, low: float, high: float, elements: int) -> None:
        """Widen the limits by those of a sample."""
        self.elements = max(self.elements, elements)
        if np.isfinite(low) and np.isfinite(high):
            self.low, self.high = min(self.low, low), max(self.high, high)


def single_values(model: ModelProto) -> list[str]:
    """Return the names of all single-precision inputs and node outputs of the main graph."""
    types = element_types(model)
    names = [value.name for value in model.graph.input]
    names += [
        name for node in model.graph.node if node.op_type != "Constant" for name in node.output
    ]
    constant = {tensor.name for tensor in model.graph.initializer}
    return [name for name in names if types.get(name) == "tensor(float)" and name not in constant]


def limits(
    path: Path,
    names: Sequence[str],
    samples: Iterable[Feeds],
    after_sample: Callable[[], None] = lambda: None,
) -> dict[str, ValueLimits]:
    """Return the limits of single-precision values over all samples; `path` is in a writable folder; raises SessionError."""
    observed = {name: ValueLimits() for name in names}
    if not observed:
        return observed
    run = _runner(path, _reduce, names)
    for feeds in samples:
        values = run(feeds)
        for index, name in enumerate(names):
            low, high, size = values[3 * index : 3 * index + 3]
            observed[name].add(float(low), float(high), int(size))
        after_sample()
    return observed


@dataclass
class ValueHistogram:
    """Counts of values in `BINS` bins of equal width between two limits."""

    low: float
    high: float
    counts: NDArray[np.int64]


def histograms(
    path: Path,
    ranges: Mapping[str, ValueLimits],
    samples: Callable[[], Iterable[Feeds]],
    after_sample: Callable[[], None] = lambda: None,
) -> dict[str, ValueHistogram]:
    """Return histograms of values between their limits, in as many passes as memory needs."""
    by_name = {
        name: ValueHistogram(range_.low, range_.high, np.zeros(BINS, np.int64))
        for name, range_ in ranges.items()
        if range_.seen and range_.high > range_.low
    }
    for group in groups({name: ranges[name].elements for name in by_name}):
        run = _runner(path, _expose, group)
        for feeds in samples():
            for name, array in zip(group, run(feeds), strict=True):
                histogram = by_name[name]
                finite = array[np.isfinite(array)]
                span = (histogram.low, histogram.high)
                histogram.counts += np.histogram(finite, BINS, span)[0]
            after_sample()
    return by_name


def groups(elements: Mapping[str, int]) -> list[list[str]]:
    """Split values into groups whose arrays fit into memory at once; a large one is alone. Pure."""
    split: list[list[str]] = []
    budget = 0
    for name, count in elements.items():
        size = 4 * count
        if not split or size > budget:
            split.append([])
            budget = _RUN_BYTES
        split[-1].append(name)
        budget -= size
    return split


def _runner(
    path: Path, change: Callable[[ModelProto, Sequence[str]], None], names: Sequence[str]
) -> Callable[[Feeds], list[Array]]:
    model = graphs.parse(path)
    Scope(model.graph).sort()
    change(model, names)
    # BASIC fuses no kernels, so the observed values are those of the file's graph
    session = load_changed(path, model, "BASIC")

    def run(feeds: Feeds) -> list[Array]:
        try:
            return list(session.run(None, dict(feeds)))
        except Exception as error:
            # exceptions of ONNX Runtime share no base class but Exception
            raise SessionError(str(error)) from error

    return run


def _reduce(model: ModelProto, names: Sequence[str]) -> None:
    graph = model.graph
    fresh = Names(model)
    del graph.output[:]
    for name in names:
        for operator, element in (
            ("ReduceMin", TensorProto.FLOAT),
            ("ReduceMax", TensorProto.FLOAT),
            ("Size", TensorProto.INT64),
        ):
            output = fresh.fresh(f"{name}/{operator}")
            attributes: dict[str, Any] = {} if operator == "Size" else {"keepdims": 0}
            graph.node.append(
                helper.make_node(operator, [name], [output], name=output, **attributes)
            )
            graph.output.append(helper.make_tensor_value_info(output, element, []))


def _expose(model: ModelProto, names: Sequence[str]) -> None:
    graph = model.graph
    del graph.output[:]
    inputs = {value.name for value in graph.input}
    single = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    for name in names:
        if name in inputs:  # ONNX Runtime refuses inputs as outputs
            graph.node.append(helper.make_node("Identity", [name], [f"{name}/observed"]))
        output = f"{name}/observed" if name in inputs else name
        graph.output.append(ValueInfoProto(name=output, type=single))
