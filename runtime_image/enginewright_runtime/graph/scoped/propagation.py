"""Constant propagation: finds values that follow from constants and from known sizes.

ONNX Runtime folds Shape only if all dimensions are known; exporters use single dimensions, which
may be known although the batch is dynamic. So values here may be lists with some known elements.
Native code (ONNX's schemas): to be called in a child process.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.graph.raw.schemas import STANDARD, attribute
from enginewright_runtime.graph.scoped.inference import Sizes, infer
from enginewright_runtime.graph.scoped.splicing import alone

Array = NDArray[Any]
Partial = Sequence[int | None]  # of one dimension

_ROUNDS: Final = 10  # each uses the values found by the previous one
_MOST: Final = 1024  # elements of a value that is kept
# Operators that exporters compute sizes and conditions with; others are not worth the time.
_COMPUTED: Final = frozenset(
    {
        *("Cast", "Identity", "Where", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Expand", "Tile", "Slice", "Gather", "GatherElements", "GatherND", "Concat", "Split"),
        *("ConstantOfShape", "Range", "Size", "Abs", "Add", "Sub", "Mul", "Div", "Mod", "Neg"),
        *("Sign", "Min", "Max", "Pow", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Clip"),
        *("ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax", "ReduceMean", "NonZero", "CumSum"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not", "Xor"),
        *("IsNaN", "IsInf", "TopK", "ArgMax", "ArgMin", "OneHot", "Pad"),
    }
)
_PLAIN: Final = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.DOUBLE,
        TensorProto.INT32,
        TensorProto.INT64,
    }
)


def find_constant_values(
    graph: GraphProto,
    types: Mapping[str, TypeProto],
    opset: int,
    outer: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Return the values of a sorted graph that are the same on every run, by name, without those of bodies.

    `types` are those of `inference.infer`, `outer` the known values of outer graphs.
    """
    arrays = dict(outer or {})
    for value in graph.input:
        arrays.pop(value.name, None)
    constants = Constants(graph, replaceable=False).small()
    arrays |= {name: numpy_helper.to_array(constant) for name, constant in constants.items()}
    values = _Values(types, opset, arrays)
    for node in graph.node:
        values.follow(node)
    return arrays


def infer_fully(model: ModelProto, sizes: Sizes) -> dict[str, TypeProto]:
    """Return the types of `inference.infer` of a sorted model, repeated with the values that known sizes determine."""
    opset = graphs.default_opset(model) or 1
    types = infer(model, sizes)
    count = -1
    for _ in range(_ROUNDS):
        values = _everywhere(model.graph, types, opset, {})
        if len(values) == count:
            break
        count = len(values)
        types = infer(model, sizes, as_tensors(values))
    return types


def _everywhere(
    graph: GraphProto, types: Mapping[str, TypeProto], opset: int, outer: Mapping[str, Array]
) -> dict[str, Array]:
    own = find_constant_values(graph, types, opset, outer)
    values = dict(own)
    for node in graph.node:
        for body in bodies(node):
            values |= _everywhere(body, types, opset, own)
    return values


def as_tensors(values: Mapping[str, Array]) -> dict[str, TensorProto]:
    """Return the values as tensors."""
    return {name: numpy_helper.from_array(array, name) for name, array in values.items()}


class _Values:
    """The known values of a graph, complete or, for lists, in part."""

    def __init__(
        self, types: Mapping[str, TypeProto], opset: int, arrays: dict[str, Array]
    ) -> None:
        self._types = types
        self._opset = opset
        self._known = arrays
        self._partial: dict[str, Partial] = {}
        self._rules: Mapping[str, Callable[[NodeProto], None]] = {
            "Shape": self._shape,
            "Size": self._size,
            "Gather": self._gather,
            "Slice": self._slice,
            "Concat": self._concat,
            "CastLike": self._cast_like,
        }

    def follow(self, node: NodeProto) -> None:
        if node.domain not in STANDARD or not node.output or node.output[0] in self._known:
            return
        if node.op_type in self._rules:
            self._rules[node.op_type](node)
        if node.output[0] not in self._known and node.op_type in _COMPUTED:
            self._compute(node)

    def _compute(self, node: NodeProto) -> None:
        names = [name for name in node.input if name]
        if not names or any(name not in self._known for name in names):
            return
        if sum(self._known[name].size for name in names) > _MOST:
            return
        from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow, and seldom needed

        model = alone(node, {"": self._opset}, self._types, {})
        try:
            results = ReferenceEvaluator(model).run(
                None, {name: self._known[name] for name in names}
            )
        except Exception:  # noqa: BLE001 - a reference operator may raise anything; then nothing is known
            return
        outputs = [name for name in node.output if name]
        for name, result in zip(outputs, results, strict=True):
            if isinstance(result, np.ndarray | np.generic) and np.asarray(result).size <= _MOST:
                self._known[name] = np.asarray(result)

    def _shape(self, node: NodeProto) -> None:
        tensor = self._types[node.input[0]].tensor_type if node.input[0] in self._types else None
        if tensor is None or not tensor.HasField("shape"):
            return
        # some exporters write a dynamic dimension as a negative size
        sizes = [
            item.dim_value if item.HasField("dim_value") and item.dim_value >= 0 else None
            for item in tensor.shape.dim
        ]
        start, end = attribute(node, "start"), attribute(node, "end")
        self._note(node, sizes[start.i if start else None : end.i if end else None])

    def _size(self, node: NodeProto) -> None:
        """The size of a list is known even if its elements are not: a shape's is the tensor's rank."""
        if (data := self._partial.get(node.input[0])) is not None:
            self._known[node.output[0]] = np.array(len(data), np.int64)

    def _gather(self, node: NodeProto) -> None:
        data, indices = self._partial.get(node.input[0]), self._known.get(node.input[1])
        if data is None or indices is None:
            return
        if not all(-len(data) <= index < len(data) for index in indices.flat):
            return
        picked = [data[int(index)] for index in indices.flat]
        if indices.ndim == 1:
            self._note(node, picked)
        elif None not in picked:
            self._known[node.output[0]] = np.array(picked, np.int64).reshape(indices.shape)

    def _slice(self, node: NodeProto) -> None:
        data = self._partial.get(node.input[0])
        names = [name for name in node.input[1:] if name]
        if data is None or len(names) < 2 or any(name not in self._known for name in names):
            return  # before opset 10 these are attributes, which are not supported here
        start, end = (int(self._known[name].flat[0]) for name in node.input[1:3])
        step = (
            int(self._known[node.input[4]].flat[0]) if len(node.input) > 4 and node.input[4] else 1
        )
        if step > 0:  # with negative steps, Python treats out-of-range ends differently
            self._note(node, data[start:end:step])

    def _concat(self, node: NodeProto) -> None:
        parts: list[int | None] = []
        for name in node.input:
            array = self._known.get(name)
            if name in self._partial:
                parts += self._partial[name]
            elif array is not None and array.ndim == 1 and array.dtype == np.int64:
                parts += array.tolist()
            else:
                return
        self._note(node, parts)

    def _cast_like(self, node: NodeProto) -> None:
        """Of the second input only the type matters."""
        value, kind = self._known.get(node.input[0]), self._types.get(node.input[1])
        element = kind.tensor_type.elem_type if kind is not None else TensorProto.UNDEFINED
        # only types whose casts are the same in NumPy and ONNX
        if value is None or element not in _PLAIN or value.dtype.kind not in "biuf":
            return
        self._known[node.output[0]] = value.astype(helper.tensor_dtype_to_np_dtype(element))

    def _note(self, node: NodeProto, values: Partial) -> None:
        if None in values:
            self._partial[node.output[0]] = values
        else:
            self._known[node.output[0]] = np.array(values, np.int64)
