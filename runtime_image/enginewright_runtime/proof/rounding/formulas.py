"""Rounds values by nodes of the graph itself, of operators that every opset has and every processor computes alike.

Weights are rounded so too, at each run: they stay as and where they are stored, and a model with gigabytes
outside of its file needs no second copy.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from enginewright_runtime.graph.scoped.scopes import Names, Scope

_SIGNIFICANT: Final = 24  # bits of float32, with the implicit one
_LIMIT: Final = 1e30  # of magnitudes that can be split: larger ones overflow
_LARGEST_HALF: Final = 65504.0
_TINY: Final = 1e-30  # added to scales, as that of zeros must not be zero
# Adding and subtracting it rounds to integers: from 2^23 on, float32 has no others.
_INTEGERS: Final = 1.5 * 2.0**23
_INT8_STEPS: Final = 255.0
INT8_LARGEST: Final = 127.0
_FP8_BITS: Final = 4  # of E4M3, with the implicit one
_FP8_LARGEST: Final = 448.0
_FP8_SMALLEST: Final = 2.0**-9  # the smallest subnormal, of which all values are multiples
# Opsets in which limits became inputs of Clip, and axes inputs of ReduceMax.
_CLIP_INPUTS: Final = 11
_REDUCE_INPUTS: Final = 18


class Numbers:
    """Numbers that formulas share: constant nodes at the beginning of the main graph, as old models have no free initializers."""

    def __init__(self, main: Scope, names: Names) -> None:
        """Take the main graph."""
        self._main = main
        self._names = names
        self._made: dict[tuple[Any, ...], str] = {}

    def number(self, value: float) -> str:
        """Return the name of a number."""
        return self._find((value,), np.array(value, np.float32))

    def integers(self, values: Sequence[int]) -> str:
        """Return the name of a list of integers."""
        return self._find(("integers", *values), np.array(values, np.int64))

    def _find(self, key: tuple[Any, ...], array: NDArray[Any]) -> str:
        if key not in self._made:
            name = self._names.fresh("rounding/constant")
            tensor = numpy_helper.from_array(array, name)
            node = helper.make_node("Constant", [], [name], name=name, value=tensor)
            self._main.add(node, (-2, self._main.next_rank()))
            self._made[key] = name
        return self._made[key]


class Formula:
    """The nodes that compute one value from another, both float32 unless a method says otherwise."""

    def __init__(self, names: Names, numbers: Numbers, opset: int, about: str) -> None:
        """Take the name of the value that it is about, for the names of nodes."""
        self._names = names
        self._numbers = numbers
        self._opset = opset
        self._about = about
        self.nodes: list[NodeProto] = []

    def end_in(self, name: str) -> None:
        """Call the last node's result `name`."""
        del self.nodes[-1].output[:]
        self.nodes[-1].output.append(name)

    def round_bits(self, value: str, bits: int) -> str:
        """Round to significant bits, by Veltkamp's split; magnitudes above `_LIMIT` pass.

        T. J. Dekker, "A floating-point technique for extending the available precision", 1971.
        """
        return self._within(value, _LIMIT, lambda inside: self._split(inside, bits))

    def round_half(self, value: str) -> str:
        """Round to FP16; larger values pass, since a conversion leaves them in single precision."""
        return self._within(
            value,
            _LARGEST_HALF,
            lambda inside: self._cast(self._cast(inside, TensorProto.FLOAT16), TensorProto.FLOAT),
        )

    def round_unit(self, value: str, bits: int) -> str:
        """Round to multiples of the unit that values just below 1 have with significant bits."""
        return self._to_multiples(value, 2.0**-bits)

    def nudge(self, value: str, bits: int) -> str:
        """Round to significant bits from a place up to half a unit beside, up or down by name: what has them stays."""
        sign = 1 if crc32(self._about.encode()) & 1 else -1
        return self.round_bits(self._by("Mul", value, 1.0 + sign * 0.75 * 2.0 ** -(bits + 1)), bits)

    def nudge_half(self, value: str, bits: int, element: int) -> str:
        """Do the same to a value of a 16-bit type."""
        return self._cast(self.nudge(self._cast(value, TensorProto.FLOAT), bits), element)

    def quantize_tensor(self, value: str, precision: str) -> str:
        """Quantize to INT8 or FP8 and back, with the range that the tensor has at this moment."""
        if precision == "FP8":
            return self.quantize_symmetric(value, precision, None)
        high = self._apply("Relu", self._largest(value, None))
        low = self._apply("Relu", self._largest(self._apply("Neg", value), None))
        return self._to_integers(value, self._scale(self._apply("Add", high, low), _INT8_STEPS))

    def quantize_symmetric(
        self,
        value: str,
        precision: str,
        axes: Sequence[int] | None,
        largest_integer: float = INT8_LARGEST,
    ) -> str:
        """Quantize symmetrically and back, with a range over these axes for each index of the others."""
        largest = self._largest(self._apply("Abs", value), axes)
        if precision == "INT8":
            return self._to_integers(value, self._scale(largest, largest_integer))
        scale = self._scale(largest, _FP8_LARGEST)
        normal = self._split(self._apply("Div", value, scale), _FP8_BITS)
        return self._apply("Mul", self._to_multiples(normal, _FP8_SMALLEST), scale)

    def _within(self, value: str, limit: float, change: Callable[[str], str]) -> str:
        """Change the part of a value within limits, and add the rest, which is 0 for most."""
        if self._opset < _CLIP_INPUTS:
            inside = self._apply("Clip", value, min=-limit, max=limit)
        else:
            low, high = self._numbers.number(-limit), self._numbers.number(limit)
            inside = self._apply("Clip", value, low, high)
        changed = change(inside)
        return self._apply("Add", changed, self._apply("Sub", value, inside))

    def _split(self, value: str, bits: int) -> str:
        scaled = self._by("Mul", value, 2.0 ** (_SIGNIFICANT - bits) + 1.0)
        return self._apply("Sub", scaled, self._apply("Sub", scaled, value))

    def _to_integers(self, value: str, scale: str) -> str:
        steps = self._to_multiples(self._apply("Div", value, scale), 1.0)
        return self._apply("Mul", steps, scale)

    def _to_multiples(self, value: str, step: float) -> str:
        return self._by("Sub", self._by("Add", value, _INTEGERS * step), _INTEGERS * step)

    def _scale(self, largest: str, steps: float) -> str:
        return self._by("Add", self._by("Mul", largest, 1.0 / steps), _TINY)

    def _largest(self, value: str, axes: Sequence[int] | None) -> str:
        if axes is None:
            return self._apply("ReduceMax", value, keepdims=1)
        if self._opset < _REDUCE_INPUTS:
            return self._apply("ReduceMax", value, axes=list(axes), keepdims=1)
        return self._apply("ReduceMax", value, self._numbers.integers(axes), keepdims=1)

    def _cast(self, value: str, element: int) -> str:
        return self._apply("Cast", value, to=element)

    def _by(self, operator: str, value: str, number: float) -> str:
        return self._apply(operator, value, self._numbers.number(number))

    def _apply(self, operator: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401 - of the operator
        name = self._names.fresh(f"{self._about}/rounding")
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name
