"""Rewrites a model so that the CPU provider computes its outputs with the rounding of another precision.

What is rounded is what a conversion to the precision, or the device, would round:

- FP32: the inputs of products, to TF32, as GPUs do by default;
- FP16, BF16: inputs, weights and results of every node that is converted: that exists in the format, and
  that `half_rules` lets have it, without values observed;
- INT8, FP8: activation and weights of products with constant weights, per tensor and per channel; the
  other products as in FP32, or all else as in FP16 where the rest has that.

A source that has the precision itself is not converted: there the kernels differ. In FP16 and BF16, where
the CPU provider does not round every result, or does so as well, each one is rounded from a value that is
up to half a unit beside. Where a source quantizes, its quantizers read values with as many bits as they
write, so that some come out one step beside.

The bodies of If, Loop and Scan are rewritten too, functions are inlined. What recurrent operators round
between their steps, and what operators outside of the schemas of ONNX and ONNX Runtime round, is left out.
Native code (the inliner, shape inference): to be called in a child process.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from onnx import ModelProto, NodeProto, TensorProto

from enginewright_runtime.core.labels import format_label
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.graph.raw.constants import Constants
from enginewright_runtime.graph.raw.schemas import STANDARD, attribute
from enginewright_runtime.graph.raw.signatures import OperatorSignature, bindings
from enginewright_runtime.graph.scoped.function_bodies import inline_functions
from enginewright_runtime.graph.scoped.scopes import Names, Node, Scope, Value, rename_apart
from enginewright_runtime.graph.scoped.shape_nodes import shape_nodes
from enginewright_runtime.proof.rounding.formulas import INT8_LARGEST, Formula, Numbers
from enginewright_runtime.proof.rounding.half_rules import HALVES, Judge
from enginewright_runtime.proof.rounding.moved_values import MOVING
from enginewright_runtime.session.operator_signatures import OperatorSignatures, element_types

Change = Callable[[Formula, str], str]  # adds nodes to a formula, and returns their result

_FLOAT: Final = "tensor(float)"
_HALF: Final = "tensor(float16)"
_HALVES: Final[
    Mapping[str, tuple[int, int]]
] = {  # significant bits, with the implicit one, and type
    _HALF: (11, TensorProto.FLOAT16),
    "tensor(bfloat16)": (8, TensorProto.BFLOAT16),
}
_LOWERED: Final = frozenset({"FP16", "BF16"})
_QUANTIZED: Final = frozenset({"INT8", "FP8"})
_TF32_BITS: Final = 11
_BITS: Final[Mapping[str, int]] = {  # of the precision's values; of INT8, of its largest ones
    "FP32": _TF32_BITS,
    "FP16": 11,
    "BF16": 8,
    "INT8": 8,
    "FP8": 4,
}
# Operators whose results are functions of tanh and sigmoid, which GPUs approximate in 16 bits with an error of the
# size that rounding has near 1, also of small results. NVIDIA, "PTX ISA", tanh: 2^-10.987 for f16, 2^-8 for bf16. Seen
# on an H100 in an LSTM of cuDNN: values of 0.0006 were 0.00017 off.
_RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})
# Operators that GPUs compute with TF32, and how many of their first inputs they multiply.
_PRODUCTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "DeformConv", "MatMul", "Gemm"), 2),
    **dict.fromkeys(("FusedConv", "FusedGemm", "FusedMatMul"), 2),
    **dict.fromkeys(_RECURRENT, 3),
    "Einsum": 2,
    "MatMulNBits": 1,
}
_LAYERS: Final = frozenset({"Conv", "MatMul", "Gemm"})  # that are quantized
_QUANTIZERS: Final = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
_QUANTIZING: Final = _QUANTIZERS | {"DequantizeLinear", "MatMulNBits"}


def emulate_rounding(
    model: ModelProto,
    precision: str,
    folder: Path = Path(),
    largest_weight: float = INT8_LARGEST,
    rest: str | None = None,
) -> ModelProto:
    """Return a copy that rounds as `precision`, FP32 to FP8, does.

    Both are parsed without external data, which is in `folder` and read one weight at a time. `largest_weight` is
    the largest integer of weights in INT8: less where products of 8 bits would saturate. `rest` is the precision of what
    INT8 and FP8 do not quantize, unless it is FP32.
    """
    emulated = graphs.copy_of(model)
    inline_functions(emulated)
    rename_apart(emulated)
    main = Scope(emulated.graph)
    main.sort()
    _name_nodes(main)
    _Emulation(emulated, main, (precision, rest), folder, largest_weight).run()
    return emulated


def _name_nodes(main: Scope) -> None:
    """Give every node a name of its own, by which shape arithmetic is recognized."""
    for index, node in enumerate(main.all_nodes()):
        node.proto.name = f"{index}/{node.proto.op_type}"


class _Emulation:
    def __init__(
        self,
        model: ModelProto,
        main: Scope,
        precisions: tuple[str, str | None],
        folder: Path,
        largest_weight: float,
    ) -> None:
        precision, rest = precisions
        self._main = main
        self._precision = precision
        self._half = rest or precision  # that of what is lowered
        self._largest_weight = largest_weight
        self._bits = _BITS[precision]
        self._opset = graphs.default_opset(model) or 1
        self._signatures = OperatorSignatures(model)
        self._types = element_types(model)
        self._shape_nodes = frozenset(shape_nodes(model))
        self._names = Names(model)
        self._numbers = Numbers(main, self._names)
        self._constants: dict[Scope, Constants] = {}
        for scope in (main, *main.bodies()):
            around = self._constants[scope.outer] if scope.outer is not None else None
            # as served: callers do not override initializers that are inputs, which old models require
            self._constants[scope] = Constants(scope.graph, folder, around, replaceable=False)
        self._copies: dict[tuple[Value, str], str] = {}  # rounded, by value and manner
        self._rounded: set[Value] = set()  # that need no such copy
        half = HALVES.get(self._half)
        self._judge = Judge(half, {}, model) if half is not None else None
        self._treat = self._choose(model)

    def _choose(self, model: ModelProto) -> Callable[[Node], None]:
        """Return what is done to each node."""
        if any(node.op_type in _QUANTIZING for node in graphs.walk_nodes(model)):
            return self._quantize_beside
        halves = {half.element for half in HALVES.values()}
        if any(tensor.data_type in halves for tensor in graphs.walk_tensors(model)):
            return self._multiply
        if self._judge is not None:
            lower = self._mix if self._precision in _QUANTIZED else self._lower
            return partial(lower, self._judge)
        return self._quantize if self._precision in _QUANTIZED else self._multiply

    def run(self) -> None:
        for node in [*self._main.all_nodes()]:
            label = format_label(node.proto.name, node.proto.op_type)
            if not node.bodies and label not in self._shape_nodes:
                self._treat(node)
                self._round_halves(node)
        for scope in (self._main, *self._main.bodies()):
            scope.write()

    # what is done to a node

    def _multiply(self, node: Node) -> None:
        for index in range(min(_PRODUCTS.get(node.proto.op_type, 0), len(node.proto.input))):
            self._read(node, index, "TF32", partial(Formula.round_bits, bits=_TF32_BITS))

    def _quantize(self, node: Node) -> None:
        weight = self._find_weight(node)
        if weight is None:
            self._multiply(node)
        else:
            self._quantize_layer(node, weight)

    def _mix(self, judge: Judge, node: Node) -> None:
        weight = self._find_weight(node)
        if weight is None:
            self._lower(judge, node)
        else:
            self._lower(judge, node, quantized=2)
            self._quantize_layer(node, weight)

    def _quantize_layer(self, node: Node, weight: TensorProto) -> None:
        precision = self._precision
        axes = _find_shared_axes(node.proto, len(weight.dims))
        self._read(node, 0, "tensor", partial(Formula.quantize_tensor, precision=precision))
        quantize = partial(
            Formula.quantize_symmetric,
            precision=precision,
            axes=axes,
            largest_integer=self._largest_weight,
        )
        self._read(node, 1, f"channels {axes}", quantize)

    def _quantize_beside(self, node: Node) -> None:
        if node.proto.op_type in _QUANTIZERS:
            self._read(node, 0, "bits", partial(Formula.round_bits, bits=self._bits))
        else:
            self._multiply(node)

    def _lower(self, judge: Judge, node: Node, quantized: int = 0) -> None:
        """Round what a node reads, after so many inputs that are quantized, and what it computes."""
        proto = node.proto
        signature = self._signatures.of(proto)
        variables = self._variables(proto, signature) if signature is not None else set()
        if signature is None or not variables:
            return
        formals = [signature.output(index) for index in range(len(proto.output))]
        results = [
            (index, name)
            for index, (name, formal) in enumerate(zip(proto.output, formals, strict=True))
            if name and formal is not None and formal.kind in variables
        ]
        formals = [signature.input(index) for index in range(len(proto.input))]
        operands = [
            (index, name)
            for index, (name, formal) in enumerate(zip(proto.input, formals, strict=True))
            if index >= quantized and name and formal is not None and formal.kind in variables
        ]
        if not results:
            return  # it reads single precision where there is a choice
        read, constants = [name for _, name in operands], self._constants[node.scope]
        if judge.why_not(proto, read, constants, main=node.scope is self._main) is not None:
            return
        for index, name in operands:
            if node.scope.find(name) not in self._rounded:
                self._read(node, index, self._half, self._round)
        for index, name in results:
            if proto.op_type not in MOVING:
                change = self._round_state if proto.op_type in _RECURRENT else self._round
                self._change_result(node, index, change)
            self._rounded.add(node.scope.values[name])

    def _round_halves(self, node: Node) -> None:
        """Round what a node computes in FP16 or BF16, or casts to it."""
        proto = node.proto
        if proto.op_type in MOVING or proto.op_type == "Constant":
            return
        kinds = {half.kind: half for half in HALVES.values()}
        for index, name in enumerate(proto.output):
            half = kinds.get(self._types.get(name, ""))
            if half is None:
                continue
            bits, element = _BITS[half.name], half.element
            if proto.op_type != "Cast":
                nudge = partial(Formula.nudge_half, bits=bits, element=element)
                self._change_result(node, index, nudge)
            elif self._types.get(proto.input[0]) == _FLOAT:
                self._read(node, 0, half.kind, partial(Formula.nudge, bits=bits))

    def _round(self, formula: Formula, value: str) -> str:
        if self._half == "FP16":
            return formula.round_half(value)
        return formula.round_bits(value, _BITS[self._half])

    def _round_state(self, formula: Formula, value: str) -> str:
        return self._round(formula, formula.round_unit(value, _BITS[self._half]))

    # what it is done to

    def _find_weight(self, node: Node) -> TensorProto | None:
        """Return the weight of a node that a conversion quantizes: of the main graph, with constant weight and bias."""
        proto = node.proto
        if (
            node.scope is not self._main
            or proto.domain not in STANDARD
            or proto.op_type not in _LAYERS
        ):
            return None
        activation, weight, *bias = [
            self._constants[self._main].tensor(name) for name in proto.input if name
        ]
        if (
            activation is not None
            or weight is None
            or weight.data_type != TensorProto.FLOAT
            or len(weight.dims) < 2
            or None in bias
        ):
            return None
        return weight

    def _variables(self, node: NodeProto, signature: OperatorSignature) -> set[str]:
        """Return the type variables that are bound to float and may be FP16."""
        bound = bindings(node, signature, self._types)
        formals = [signature.input(index) for index in range(len(node.input))]
        return {
            formal.kind
            for formal in formals
            if formal is not None
            and formal.binds
            and bound.get(formal.kind) == _FLOAT
            and _HALF in formal.allowed
        }

    def _read(self, node: Node, index: int, manner: str, make: Change) -> None:
        """Let an input of a node read a changed copy of its value, if that is float32."""
        name = node.proto.input[index]
        value = node.scope.find(name)
        if value is None or self._types.get(name) != _FLOAT:
            return
        if (value, manner) not in self._copies:
            formula = self._formula(name)
            self._copies[value, manner] = make(formula, name)
            if value.producer is not None:
                value.producer.insert_after(*formula.nodes)
            else:
                for proto in formula.nodes:
                    value.scope.add(proto, (-1, value.scope.next_rank()))
        node.set_input(index, self._copies[value, manner])

    def _change_result(self, node: Node, index: int, make: Change) -> None:
        """Change a result of a node, under its name, for all readers."""
        name = node.proto.output[index]
        exact = self._names.fresh(f"{name}/exact")
        node.set_output(index, exact)
        formula = self._formula(name)
        make(formula, exact)
        formula.end_in(name)
        node.insert_after(*formula.nodes)

    def _formula(self, about: str) -> Formula:
        return Formula(self._names, self._numbers, self._opset, about)


def _find_shared_axes(node: NodeProto, rank: int) -> tuple[int, ...] | None:
    """Return the axes of a weight over which the values of one output channel lie; None if that is not known."""
    match node.op_type:
        case "Conv":
            return tuple(range(1, rank))
        case "Gemm":
            transposed = attribute(node, "transB")
            return (1,) if transposed is not None and transposed.i else (0,)
        case _:
            return (0,) if rank == 2 else None  # batched matrices share no axis of channels
