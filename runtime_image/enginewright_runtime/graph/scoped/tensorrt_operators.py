"""Writes TensorRT's own operators for quantization as ONNX's, so that ONNX Runtime computes what they mean.

NVIDIA's ModelOpt exports models in FP8, MXFP8, INT4 and NVFP4 with operators of the domain trt. TensorRT's parser knows
them, ONNX Runtime's CPU provider does not. Their semantics: QuantDequantLinearHelper and the importers after it in
onnxOpImporters.cpp of onnx-tensorrt 10.15, and IDynamicQuantizeLayer of TensorRT. That parser takes an operator by its
name alone, so ONNX's own in that domain are ONNX's. FP4 values are stored as FP8, which has all of them: the CPU provider
computes with FP8 and not with FP4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, parser

from enginewright_runtime.core.model_files import TENSORRT
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.schemas import STANDARD, attribute, is_kept
from enginewright_runtime.graph.scoped.element_types import types_of
from enginewright_runtime.graph.scoped.scopes import separate_names

_OPSET: Final = 21  # the first whose QuantizeLinear names its output's type and has blocks
_IR_VERSION: Final = 10  # likewise
_FP8: Final = TensorProto.FLOAT8E4M3FN
_LINEAR: Final[
    Mapping[str, tuple[str, int | None]]
] = {  # operator -> ONNX's, and its output's type
    "QuantizeLinear": ("QuantizeLinear", None),
    "DequantizeLinear": ("DequantizeLinear", None),
    "TRT_FP8QuantizeLinear": ("QuantizeLinear", _FP8),
    "TRT_FP8DequantizeLinear": ("DequantizeLinear", None),
    "TRT_INT4QuantizeLinear": ("QuantizeLinear", TensorProto.INT4),
    "TRT_INT4DequantizeLinear": ("DequantizeLinear", None),
}


@dataclass(frozen=True)
class _Definition:
    """An operator that ONNX has as several: its function's interface and body, by block size, axis and output type."""

    block: int  # by default
    head: str
    body: str
    last_axis: bool = False  # whether it has blocks along the last axis only


# the blocks of x as the last axis of b, and the largest magnitude of each
_BLOCKS: Final = """
    f = Cast <to = 1> (x)
    sizes = Shape (f)
    outer = Shape <end = -1> (f)
    inner = Constant <value_ints = [-1, {block}]> ()
    blocked = Concat <axis = 0> (outer, inner)
    b = Reshape (f, blocked)
    magnitudes = Abs (b)
    last = Constant <value_ints = [-1]> ()
    largest = ReduceMax <keepdims = 1> (magnitudes, last)
"""
# the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, even mantissas of two as near: Round is to even
_ROUNDED_TO_FP4: Final = """
    sign = Sign (r)
    six = Constant <value_float = 6.0> ()
    four = Constant <value_float = 4.0> ()
    two = Constant <value_float = 2.0> ()
    size = Abs (r)
    m = Min (size, six)
    doubled = Mul (m, two)
    halves = Round (doubled)
    low = Div (halves, two)
    middle = Round (m)
    halved = Div (m, two)
    evens = Round (halved)
    high = Mul (evens, two)
    is_low = Less (m, two)
    is_middle = Less (m, four)
    upper = Where (is_middle, middle, high)
    nearest = Where (is_low, low, upper)
    signed = Mul (sign, nearest)
"""
# a scale of E8M0 is a power of two
_POWER: Final = """
    e = Cast <to = 1> (s)
    bias = Constant <value_float = 127.0> ()
    exponent = Sub (e, bias)
    base = Constant <value_float = 2.0> ()
    scale = Pow (base, exponent)
"""
_DEFINED: Final[Mapping[str, _Definition]] = {
    # a block's scale is FP8 itself, in units of the tensor's scale
    "TRT_FP4DynamicQuantize": _Definition(
        16,
        "(x, scale) => (y, s)",
        _BLOCKS
        + """
    unit = Cast <to = 1> (scale)
    most = Constant <value_float = 6.0> ()
    range = Mul (unit, most)
    exact = Div (largest, range)
    squeezed = Squeeze (exact, last)
    s = Cast <to = 17> (squeezed)
    stored = Cast <to = 1> (s)
    own = Unsqueeze (stored, last)
    step = Mul (own, unit)
    zero = Constant <value_float = 0.0> ()
    one = Constant <value_float = 1.0> ()
    is_zero = Equal (step, zero)
    divisor = Where (is_zero, one, step)
    r = Div (b, divisor)
"""
        + _ROUNDED_TO_FP4
        + """
    whole = Reshape (signed, sizes)
    y = Cast <to = 17> (whole)
""",
        last_axis=True,
    ),
    # the smallest power of two with which no value of the block is beyond 448
    "TRT_MXFP8DynamicQuantize": _Definition(
        32,
        "(x) => (y, s)",
        _BLOCKS
        + """
    most = Constant <value_float = 448.0> ()
    exact = Div (largest, most)
    natural = Log (exact)
    base = Constant <value_float = 2.0> ()
    of_base = Log (base)
    binary = Div (natural, of_base)
    error = Constant <value_float = 0.00001> ()
    lowered = Sub (binary, error)
    raised = Ceil (lowered)
    least = Constant <value_float = -127.0> ()
    bias = Constant <value_float = 127.0> ()
    exponent = Clip (raised, least, bias)
    step = Pow (base, exponent)
    r = Div (b, step)
    whole = Reshape (r, sizes)
    y = Cast <to = 17> (whole)
    squeezed = Squeeze (exponent, last)
    biased = Add (squeezed, bias)
    s = Cast <to = 2> (biased)
""",
        last_axis=True,
    ),
    "TRT_MXFP8QuantizeLinear": _Definition(
        32,
        "(x, s) => (y)",
        _POWER
        + """
    f = Cast <to = 1> (x)
    y = QuantizeLinear <axis = {axis}, block_size = {block}, output_dtype = 17> (f, scale)
""",
    ),
    "TRT_MXFP8DequantizeLinear": _Definition(
        32,
        "(x, s) => (y)",
        _POWER
        + """
    f = DequantizeLinear <axis = {axis}, block_size = {block}> (x, scale)
    y = Cast <to = {output}> (f)
""",
    ),
}


def uses(model: ModelProto) -> bool:
    """Return whether a model has operators that only TensorRT defines."""
    return bool(_own_nodes(model))


def replace(model: ModelProto, folder: Path) -> bool:
    """Replace them in a model whose external data is in `folder`, in place; return whether that is possible.

    Names of nodes stay. It is not where an operator is none of the above, has blocks along another axis than the
    last, or where a node of the model has another meaning in opset 21. Declared types of inner values are dropped:
    ModelOpt notes UINT8 for FP8.
    """
    nodes = _own_nodes(model)
    if not nodes or not all(map(_is_expressible, nodes)) or not _raise_opset(model):
        return False
    for tensor in graphs.walk_tensors(model):
        if tensor.data_type == TensorProto.FLOAT4E2M1:
            _store_as_fp8(tensor, folder)
    functions: dict[str, str] = {}
    for node in nodes:
        if node.op_type in _LINEAR:
            _rename(node)
        else:
            _call(node, functions)
    model.functions.extend(map(parser.parse_function, functions.values()))
    if not any(entry.domain == TENSORRT for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(TENSORRT, 1))
    for graph in graphs.walk_graphs(model):
        del graph.value_info[:]
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return True


def _own_nodes(model: ModelProto) -> list[NodeProto]:
    functions = {(function.domain, function.name) for function in model.functions}
    return [
        node
        for node in graphs.walk_nodes(model)
        if node.domain == TENSORRT and (node.domain, node.op_type) not in functions
    ]


def _is_expressible(node: NodeProto) -> bool:
    if node.op_type in _LINEAR:
        return True
    definition = _DEFINED.get(node.op_type)
    return definition is not None and (not definition.last_axis or _read(node, "axis", 1) == -1)


def _raise_opset(model: ModelProto) -> bool:
    """Raise the opset to the one that has all that is needed; return whether every node means the same in it."""
    opset = graphs.default_opset(model) or 1
    if opset >= _OPSET:
        return True
    types = types_of(separate_names(model))
    functions = {(function.domain, function.name) for function in model.functions}
    if not all(
        is_kept(node, opset, _OPSET, types)
        for node in graphs.walk_nodes(model)
        if node.domain in STANDARD and (node.domain, node.op_type) not in functions
    ):
        return False
    for entry in model.opset_import:
        if entry.domain in STANDARD:
            entry.version = _OPSET
    return True


def _store_as_fp8(tensor: TensorProto, folder: Path) -> None:
    values = numpy_helper.to_array(tensor, str(folder))
    kind = helper.tensor_dtype_to_np_dtype(_FP8)
    tensor.CopyFrom(numpy_helper.from_array(values.astype("float32").astype(kind), tensor.name))


def _rename(node: NodeProto) -> None:
    operator, output = _LINEAR[node.op_type]
    node.domain, node.op_type = "", operator
    if output is not None and attribute(node, "output_dtype") is None:
        node.attribute.append(helper.make_attribute("output_dtype", output))


def _call(node: NodeProto, functions: dict[str, str]) -> None:
    """Make the node the call of a function for its attributes, which is added to `functions`."""
    definition = _DEFINED[node.op_type]
    axis = _read(node, "axis", -1)
    block = _read(node, "block_size", definition.block)
    output = _read(node, "output_dtype", TensorProto.FLOAT)
    name = f"{node.op_type}_{block}_{output}_{'before' if axis < 0 else 'after'}_{abs(axis)}"
    body = definition.body.format(axis=axis, block=block, output=output)
    header = f'<domain: "{TENSORRT}", opset_import: ["": {_OPSET}]>'
    functions[name] = f"{header} {name} {definition.head} {{{body}}}"
    node.op_type = name
    del node.attribute[:]


def _read(node: NodeProto, name: str, default: int) -> int:
    entry = attribute(node, name)
    return default if entry is None else int(entry.i)
