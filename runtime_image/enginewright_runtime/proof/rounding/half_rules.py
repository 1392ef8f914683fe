"""16-bit formats, and which nodes must not compute in them, by operator, weights and values. Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.proof.rounding.angles import ABSOLUTE, find_angles
from enginewright_runtime.proof.rounding.moved_values import find_moved, find_reachable


@dataclass(frozen=True)
class Half:
    """A 16-bit floating-point format."""

    name: str
    element: int
    kind: str  # ONNX's type string
    dtype: Any  # NumPy's
    largest: float
    # operators that runtimes lack in this format
    refused: Mapping[str, str] = field(default_factory=dict)
    # operators whose small results it makes zeros: that matters where they are the model's, moved or not
    emptied: Mapping[str, str] = field(default_factory=dict)
    # likewise: that matters where it is divided by them, or reads their logarithms
    vanishing: frozenset[str] = frozenset()


HALVES: Final = {
    item.name: item
    for item in (
        Half(
            name="FP16",
            element=TensorProto.FLOAT16,
            kind="tensor(float16)",
            dtype=np.float16,
            largest=65504.0,
            emptied={"Softmax": "the model's probabilities below 6e-8 would be zeros in FP16"},
            vanishing=frozenset({"Softmax", "Sigmoid"}),
        ),
        Half(
            name="BF16",
            element=TensorProto.BFLOAT16,
            kind="tensor(bfloat16)",
            dtype=ml_dtypes.bfloat16,
            largest=3.3895e38,
            # TensorRT-RTX 1.7.1: "Could not infer output types for operation: deconv"
            refused={"ConvTranspose": "TensorRT has no deconvolution in BF16"},
        ),
    )
}
# Operators that stay in single precision regardless of their values.
# - PyTorch, "Automatic Mixed Precision package", CUDA ops that can autocast to float32: exp, pow, sum,
#   prod, cumsum, norm and the like. (softmax and layer_norm are on that list too; ONNX Runtime and
#   TensorRT compute those in single precision internally, which ONNX's LayerNormalization declares by
#   stash_type.)
# - NVIDIA TensorRT, "Working with Quantized Types", strongly typed networks: Pow and Reduce of a layer
#   normalization composed of primitive operators overflow in FP16.
# - ONNX Runtime, transformers/float16.py, DEFAULT_OP_BLOCK_LIST: these process indices and counts.
_UNSAFE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Exp", "Pow"), "its results exceed half precision's range for common inputs"),
    **dict.fromkeys(
        (
            *("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum"),
            *("ReduceLogSumExp", "ReduceProd", "ReduceMean", "CumSum", "CumProd"),
        ),
        "it sums or multiplies many elements",
    ),
    **dict.fromkeys(
        ("Range", "NonMaxSuppression", "TopK", "ArgMax", "ArgMin", "RoiAlign", "GridSample"),
        "it computes indices or coordinates, which must be exact",
    ),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"),
        "its random numbers would differ",
    ),
}
# Operators that ONNX Runtime's CUDA provider has in half precision from an opset on (1.31.1, on an H200: nodes
# of earlier opsets run on the CPU).
_SINCE: Final[Mapping[str, int]] = {"Clip": 12}
# Share of the format's largest value that observed values may reach: golden samples are few.
_HEADROOM: Final = 0.25
# Relative root-mean-square error of a weight: rounding to FP16 costs 2e-4, to BF16 2e-3; underflow of
# half of the elements costs more than this.
_MAX_LOSS: Final = 1e-2
_PIECE: Final = 1 << 20  # elements that are widened at a time
# Operators of the list whose results may be much larger than their inputs, those that propagate such
# values, and those that read them and return to common values (x / sum(x)): all stay single.
_WIDENING: Final = frozenset(
    {
        *("Exp", "Pow", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceProd"),
        *("CumSum", "CumProd"),
    }
)
_PASSING: Final = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Max", "Min", "ReduceMean"})
_NARROWING: Final = frozenset({"Div", "Reciprocal", "Log", "Sqrt", "Softmax", "LogSoftmax"})
_UNDERFLOW: Final = "to underflow"
# Operators that return infinity when a small constant underflows to zero, as in x / max(norm, 1e-12).
_DIVIDING: Final = frozenset({"Div", "Reciprocal", "Log", "Sqrt"})
# Which of their inputs must not be zero.
_DIVISORS: Final[Mapping[str, int]] = {"Div": 1, "Reciprocal": 0, "Log": 0}
# Operators that return the elements of their first input in another shape.
_COPYING: Final = frozenset(
    {"Expand", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
_VANISHES: Final = "in half precision values below 6e-8 are zeros, by which it is divided, or of which a logarithm is read"
_DIVIDES: Final = "it divides by a value that underflows in half precision"


class Judge:
    """Decides whether nodes must stay in single precision; called in the order of the graph."""

    def __init__(self, half: Half, largest: Mapping[str, float], model: ModelProto) -> None:
        """Take the largest values observed, by name, and the model."""
        self._half = half
        self._emptied = {
            name: reason
            for operator, reason in half.emptied.items()
            for name in find_moved(model.graph, {operator})
        }
        self._angles = find_angles(model.graph)
        self._vanishing = find_moved(model.graph, half.vanishing, _DIVISORS)
        opset = graphs.default_opset(model) or 1
        self._lacking = {
            operator: f"GPUs compute it in {half.name} only from opset {since} on"
            for operator, since in _SINCE.items()
            if opset < since
        }
        limit = half.largest * _HEADROOM
        self._far = {name for name, value in largest.items() if not value <= limit}
        self._losses: dict[str, str | None] = {}  # of constants examined so far
        self._wide: set[str] = set()  # values that may exceed the range for other inputs
        self._copied: dict[str, list[str]] = defaultdict(list)  # what values are copies of
        for node in graphs.nodes_in(model.graph.node):
            if node.op_type in _COPYING:
                self._copied[node.output[0]].append(node.input[0])
        self._tiny: set[str] = set()  # outputs of nodes kept single because a constant underflows
        self._inverse: set[str] = set()  # one divided by these, which may exceed the range

    def why_not(
        self, node: NodeProto, halved: list[str], constants: Constants, *, main: bool
    ) -> str | None:
        """Return why the node must stay in single precision, if it must.

        `halved` are its inputs that would become half; values are observed in the `main` graph
        only.
        """
        listed = (
            _UNSAFE.get(node.op_type)
            or self._half.refused.get(node.op_type)
            or self._lacking.get(node.op_type)
            or next(filter(None, map(self._emptied.get, node.output)), None)
            or self._find_exactness(node)
        )
        lost = next(filter(None, (self._loss_of(name, constants) for name in halved)), None)
        if lost is not None and _UNDERFLOW in lost:
            self._tiny.update(node.output)
        division = self._find_division(node)
        reads_wide = bool(self._wide & {*node.input})
        if node.op_type in _WIDENING or (node.op_type in _PASSING and reads_wide):
            self._wide.update(node.output)
        if listed:
            return listed
        if reads_wide and node.op_type in _PASSING | _NARROWING:
            return "it reads values that exceed half precision's range for common inputs"
        if main and (far := self._far & {*node.input, *node.output}):
            return f"values of {min(far)} approach the limit of {self._half.name}"
        return division or lost

    def _find_exactness(self, node: NodeProto) -> str | None:
        """Return why a node's result needs single precision for what reads it."""
        if self._angles & {*node.output}:
            return ABSOLUTE
        divisor = _DIVISORS.get(node.op_type)
        reads = divisor is not None and node.input[divisor] in self._vanishing
        return _VANISHES if reads or self._vanishing & {*node.output} else None

    def _find_division(self, node: NodeProto) -> str | None:
        """Return why a node stays that divides by what underflows, moves it, or multiplies by its inverse."""
        inputs = find_reachable(node.input, self._copied)
        if node.op_type in _DIVIDING and self._tiny & inputs:
            (self._inverse if node.op_type == "Reciprocal" else self._tiny).update(node.output)
            return _DIVIDES
        if node.op_type in _COPYING and (self._tiny | self._inverse) & inputs:
            return _DIVIDES
        return _DIVIDES if node.op_type == "Mul" and self._inverse & inputs else None

    def _loss_of(self, name: str, constants: Constants) -> str | None:
        if constants.tensor(name) is None:
            return None
        if name not in self._losses:
            array = constants.array(name)
            self._losses[name] = None if array is None else loss(name, array, self._half)
        return self._losses[name]


def loss(name: str, array: NDArray[Any], half: Half) -> str | None:
    """Return what a weight loses in half precision, if that is more than rounding."""
    finite = array[np.isfinite(array)]
    largest = float(np.abs(finite).max(initial=0.0))
    if largest > half.largest:
        return f"weight {name} has {largest:.4g}, beyond {half.name}'s {half.largest:.4g}"
    if not largest:
        return None
    lost = total = 0.0
    flat = finite.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        exact = flat[start : start + _PIECE].astype(np.float64)
        lost += float(np.square(exact.astype(half.dtype).astype(np.float64) - exact).sum())
        total += float(np.square(exact).sum())
    error = math.sqrt(lost / total) if total else 0.0
    if error > _MAX_LOSS:
        return f"weight {name}, at most {largest:.3g}, loses {error:.0%} {_UNDERFLOW}"
    return None
