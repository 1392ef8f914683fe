"""Which values of a graph are constant because they follow from constants and from known sizes.

ONNX Runtime folds Shape only where all dimensions are known; exporters ask for one of them, which
may be known beside an open batch. So a value here may also be a list in which some elements are known.
Native code (ONNX's reference operators are Python, its schemas are not): for child processes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from enginewright_runtime.graph import graphs
from enginewright_runtime.graph.inference import Sizes, bodies, constants, infer
from enginewright_runtime.graph.schemas import STANDARD, attribute
from enginewright_runtime.graph.splicing import alone

Array = NDArray[Any]
Partial = Sequence[int | None]  # of one dimension

_ROUNDS: Final = 10  # each uses what the one before found
_MOST: Final = 1024  # elements of a value that is kept
# What exporters compute sizes and conditions with; others are not worth the time.
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


def known_values(
    graph: GraphProto,
    types: Mapping[str, TypeProto],
    opset: int,
    outer: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Return the values of a sorted graph that are the same on every run, by name.

    Args:
        graph: the bodies of its nodes are left out.
        types: of its values, as `inference.infer` gives them.
        opset: of ai.onnx.
        outer: known values around the graph.
    """
    known = dict(outer or {})
    for value in graph.input:
        known.pop(value.name, None)
    known |= {name: numpy_helper.to_array(tensor) for name, tensor in constants(graph, {}).items()}
    partial: dict[str, Partial] = {}
    for node in graph.node:
        if node.domain not in STANDARD or not node.output or node.output[0] in known:
            continue
        if node.op_type in _PARTIAL:
            _PARTIAL[node.op_type](node, types, known, partial)
        if node.output[0] not in known and node.op_type in _COMPUTED:
            _compute(node, opset, types, known)
    return known


def infer_fully(model: ModelProto, sizes: Sizes) -> dict[str, TypeProto]:
    """Return what `inference.infer` does, with sizes that follow from values that follow from sizes.

    The model's main graph must be sorted.
    """
    opset = graphs.default_opset(model) or 1
    types = infer(model, sizes)
    count = -1
    for _ in range(_ROUNDS):
        known = _everywhere(model.graph, types, opset, {})
        if len(known) == count:
            break
        count = len(known)
        types = infer(model, sizes, as_tensors(known))
    return types


def _everywhere(
    graph: GraphProto, types: Mapping[str, TypeProto], opset: int, outer: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the known values of a graph and of all bodies in it."""
    known = known_values(graph, types, opset, outer)
    found = dict(known)
    for node in graph.node:
        for body in bodies(node):
            found |= _everywhere(body, types, opset, known)
    return found


def as_tensors(known: Mapping[str, Array]) -> dict[str, TensorProto]:
    """Return the values as tensors."""
    return {name: numpy_helper.from_array(array, name) for name, array in known.items()}


def _compute(
    node: NodeProto, opset: int, types: Mapping[str, TypeProto], known: dict[str, Array]
) -> None:
    names = [name for name in node.input if name]
    if not names or any(name not in known for name in names):
        return
    if sum(known[name].size for name in names) > _MOST:
        return
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow, and seldom needed

    model = alone(node, {"": opset}, types, {})
    try:
        results = ReferenceEvaluator(model).run(None, {name: known[name] for name in names})
    except Exception:  # noqa: BLE001 - a reference operator may raise anything; then nothing is known
        return
    made = [name for name in node.output if name]
    for name, result in zip(made, results, strict=True):
        if isinstance(result, np.ndarray | np.generic) and np.asarray(result).size <= _MOST:
            known[name] = np.asarray(result)


def _shape(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: dict[str, Array],
    partial: dict[str, Partial],
) -> None:
    tensor = types[node.input[0]].tensor_type if node.input[0] in types else None
    if tensor is None or not tensor.HasField("shape"):
        return
    # a negative size is how some exporters write an unknown one
    sizes = [
        each.dim_value if each.HasField("dim_value") and each.dim_value >= 0 else None
        for each in tensor.shape.dim
    ]
    start, end = attribute(node, "start"), attribute(node, "end")
    _found(node, sizes[start.i if start else None : end.i if end else None], known, partial)


def _size(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: dict[str, Array],
    partial: dict[str, Partial],
) -> None:
    """A list has a size even if its elements are not known: the rank of what it is the shape of."""
    del types
    if (data := partial.get(node.input[0])) is not None:
        known[node.output[0]] = np.array(len(data), np.int64)


def _gather(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: dict[str, Array],
    partial: dict[str, Partial],
) -> None:
    del types
    data, indices = partial.get(node.input[0]), known.get(node.input[1])
    if (
        data is None
        or indices is None
        or not all(-len(data) <= i < len(data) for i in indices.flat)
    ):
        return
    picked = [data[int(index)] for index in indices.flat]
    if indices.ndim == 1:
        _found(node, picked, known, partial)
    elif None not in picked:
        known[node.output[0]] = np.array(picked, np.int64).reshape(indices.shape)


def _slice(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: dict[str, Array],
    partial: dict[str, Partial],
) -> None:
    del types
    data = partial.get(node.input[0])
    names = [name for name in node.input[1:] if name]
    if data is None or len(names) < 2 or any(name not in known for name in names):
        return  # before opset 10 they are attributes: not worth it
    start, end = (int(known[name].flat[0]) for name in node.input[1:3])
    step = int(known[node.input[4]].flat[0]) if len(node.input) > 4 and node.input[4] else 1
    if step > 0:  # backwards, ends past the beginning mean something else in Python
        _found(node, data[start:end:step], known, partial)


def _concat(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: dict[str, Array],
    partial: dict[str, Partial],
) -> None:
    del types
    parts: list[int | None] = []
    for name in node.input:
        if name in partial:
            parts += partial[name]
        elif name in known and known[name].ndim == 1 and known[name].dtype == np.int64:
            parts += [int(each) for each in known[name]]
        else:
            return
    _found(node, parts, known, partial)


def _cast_like(
    node: NodeProto,
    types: Mapping[str, TypeProto],
    known: dict[str, Array],
    partial: dict[str, Partial],
) -> None:
    """Of what it is cast like only the type counts."""
    del partial
    value, kind = known.get(node.input[0]), types.get(node.input[1])
    element = kind.tensor_type.elem_type if kind is not None else TensorProto.UNDEFINED
    # from and to types whose casts NumPy and ONNX agree on
    if value is None or element not in _PLAIN or value.dtype.kind not in "biuf":
        return
    known[node.output[0]] = value.astype(helper.tensor_dtype_to_np_dtype(element))


def _found(
    node: NodeProto, values: Partial, known: dict[str, Array], partial: dict[str, Partial]
) -> None:
    if None in values:
        partial[node.output[0]] = values
    else:
        known[node.output[0]] = np.array(values, np.int64)


_Rule = Callable[[NodeProto, Mapping[str, TypeProto], dict[str, Array], dict[str, Partial]], None]
_PARTIAL: Final[Mapping[str, _Rule]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "CastLike": _cast_like,
}
