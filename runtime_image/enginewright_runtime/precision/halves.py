"""Makes a model compute in half precision: FP16 or BF16, with single precision where a half will not do.

Inputs and outputs keep their types: casts stand at the borders. Tools for this exist and were tried
(docs/precision.md says what they break); none tells a weight that a half cannot hold. Here a node stays
in single precision, and is told of, when
- its operator is unsafe in halves by the list below, or computes sizes (shape arithmetic);
- a weight of it overflows or vanishes in the format;
- a value that it reads or makes was seen near the format's limit;
- it is excluded because it costs too much accuracy (`searching`).
"""

from collections import ChainMap, Counter
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from enginewright_runtime import graphs
from enginewright_runtime.conversion.branches import remove_unused
from enginewright_runtime.conversion.element_types import declared
from enginewright_runtime.conversion.inference import bodies
from enginewright_runtime.conversion.splicing import Names
from enginewright_runtime.precision.signatures import (
    Signature,
    Signatures,
    bindings,
    element_types,
)
from enginewright_runtime.precision.subject import Subject
from enginewright_runtime.precision.tensors import Constants, Sink
from enginewright_runtime.promise import label


@dataclass(frozen=True)
class Half:
    """A format of 16 bits."""

    name: str
    element: int
    kind: str  # ONNX's type string
    dtype: Any  # NumPy's
    largest: float


HALVES: Final = {
    each.name: each
    for each in (
        Half("FP16", TensorProto.FLOAT16, "tensor(float16)", np.float16, 65504.0),
        Half(
            "BF16",
            TensorProto.BFLOAT16,
            "tensor(bfloat16)",
            ml_dtypes.bfloat16,
            float(ml_dtypes.finfo(ml_dtypes.bfloat16).max),
        ),
    )
}
_FLOAT: Final = "tensor(float)"

# Operators that stay in single precision whatever their values are.
# - PyTorch, "Automatic Mixed Precision package", CUDA ops that can autocast to float32: exp, pow, sum,
#   prod, cumsum, norm and the like. (softmax and layer_norm are on that list too; ONNX Runtime and
#   TensorRT compute those in single precision inside, and ONNX's LayerNormalization says so by
#   stash_type.)
# - NVIDIA TensorRT, "Working with Quantized Types", strongly typed networks: Pow and Reduce of a layer
#   normalisation made of single operators overflow in FP16.
# - ONNX Runtime, transformers/float16.py, DEFAULT_OP_BLOCK_LIST: indices and counts go through these.
_UNSAFE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Exp", "Pow"), "its results leave the range of halves for common inputs"),
    **dict.fromkeys(
        ("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum")
        + ("ReduceLogSumExp", "ReduceProd", "ReduceMean", "CumSum", "CumProd"),
        "it sums or multiplies many elements",
    ),
    **dict.fromkeys(
        ("Range", "NonMaxSuppression", "TopK", "ArgMax", "ArgMin", "RoiAlign", "GridSample"),
        "it makes indices or coordinates, which have to be exact",
    ),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"),
        "its numbers would be other ones",
    ),
}
# Of the format's largest value that a value may have been seen at: golden samples are few.
_HEADROOM: Final = 0.25
# Relative error of a weight as a whole, its root mean square: rounding to FP16 costs 2e-4, to BF16
# 2e-3; one half of the elements lost to zero costs more than this.
_LOST: Final = 1e-2
_UNDERFLOW: Final = "to underflow"
# What makes infinity of a small constant that became zero, as in x / max(norm, 1e-12).
_DIVIDING: Final = frozenset({"Div", "Reciprocal", "Log", "Sqrt"})


@dataclass
class Lowered:
    """A model in half precision."""

    model: ModelProto
    kept: dict[str, str] = field(default_factory=dict)  # label to why it stayed in single precision
    lowered: int = 0  # nodes
    units: frozenset[int] = frozenset()  # indices of nodes that are, or hold, lowered ones


def lower(
    subject: Subject,
    half: Half,
    sink: Sink,
    *,
    excluded: frozenset[int] = frozenset(),
    largest: Mapping[str, float] | None = None,
) -> Lowered:
    """Return a copy of the model in half precision; what it adds is written to `sink`.

    Args:
        subject: the model.
        half: the format.
        sink: of the model to be written.
        excluded: indices of nodes that stay as they are, with all that is in their bodies.
        largest: greatest absolute value that was seen of values of the main graph, by name.
    """
    return _Lowering(subject, half, sink, excluded, largest or {}).run()


_Forms = dict[str, str]  # a value's names by type string


class _Scope:
    """What a graph sees: the names that values have in each type, and constants."""

    def __init__(
        self,
        graph: GraphProto,
        constants: Constants,
        forms: MutableMapping[str, _Forms | None],
        parent: "_Scope | None" = None,
    ) -> None:
        self.graph = graph
        self.constants = constants
        self.forms = forms  # None: the value is of another type, and is left alone
        self.parent = parent
        self.nodes: list[NodeProto] = []

    def add_form(self, value: str, kind: str, name: str) -> None:
        """Note that a value is there in another type, for this graph and its bodies."""
        self.forms[value] = {**(self.forms.get(value) or {}), kind: name}


class _Lowering:
    def __init__(
        self,
        subject: Subject,
        half: Half,
        sink: Sink,
        excluded: frozenset[int],
        largest: Mapping[str, float],
    ) -> None:
        self._subject = subject
        self._half = half
        self._sink = sink
        self._excluded = excluded
        self._model = subject.copy()
        self._signatures = Signatures(self._model)
        self._types = element_types(self._model)
        self._names = Names(self._model)
        self._far = {
            name for name, value in largest.items() if not value <= half.largest * _HEADROOM
        }
        self._fits: dict[str, str | None] = {}  # constants that were looked at
        self._tiny: set[str] = set()  # values of nodes that stay single for a constant's underflow
        self._pinned = set(_outputs(self._model.graph))  # must keep name and type
        self._result = Lowered(self._model)
        self._units: set[int] = set()

    def run(self) -> Lowered:
        graph = self._model.graph
        forms: ChainMap[str, _Forms | None] = ChainMap()
        for value in graph.input:
            forms[value.name] = self._given(value)
        scope = _Scope(graph, self._subject.constants, forms)
        for index, node in enumerate([*graph.node]):
            before = self._result.lowered
            self._node(node, scope, excluded=index in self._excluded, inside=False)
            if self._result.lowered > before:
                self._units.add(index)
        self._finish(scope)
        self._result.units = frozenset(self._units)
        return self._result

    def _given(self, value: ValueInfoProto) -> _Forms | None:
        return {_FLOAT: value.name} if declared(value.type) == _FLOAT else None

    def _finish(self, scope: _Scope) -> None:
        graph = scope.graph
        # copies, since what is taken out of a protobuf's list is no longer its own
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in scope.nodes]
        del graph.node[:]
        graph.node.extend(nodes)
        # types in it are no longer true, and who loads the model infers them
        del graph.value_info[:]
        remove_unused(graph)

    def _node(self, node: NodeProto, scope: _Scope, *, excluded: bool, inside: bool) -> None:
        if node.op_type == "Constant":
            self._constant(node, scope)
            return
        inner = [*bodies(node)]
        signature = self._signatures.of(node)
        variables: set[str] = set()
        if not inner and signature is not None:
            variables = self._variables(node, signature)
        if signature is not None and not self._makes(node, signature, variables):
            variables = self._as_they_are(node, signature, variables, scope)
        elif variables and (
            why := self._why_not(node, signature, variables, scope, excluded, inside)
        ):
            self._result.kept[graphs.label(node)] = why
            variables = set()
        self._read(node, signature, variables, scope)
        for body in inner:
            if excluded:
                self._leave_alone(body, scope)
            else:
                self._body(body, scope)
        self._make(node, signature, variables, scope)

    def _constant(self, node: NodeProto, scope: _Scope) -> None:
        name = node.output[0]
        scope.forms[name] = {_FLOAT: name} if self._types.get(name) == _FLOAT else None
        scope.nodes.append(node)

    def _body(self, body: GraphProto, outer: _Scope) -> None:
        """Lower what is in a body; its inputs and outputs keep their types."""
        forms = ChainMap[str, "_Forms | None"]({}, *_maps(outer.forms))
        for value in body.input:
            forms[value.name] = (
                {_FLOAT: value.name} if self._types.get(value.name) == _FLOAT else None
            )
        constants = Constants(body, self._subject.folder, outer.constants)
        scope = _Scope(body, constants, forms, outer)
        for node in [*body.node]:
            self._node(node, scope, excluded=False, inside=True)
        self._finish(scope)

    def _leave_alone(self, body: GraphProto, outer: _Scope) -> None:
        """Give a body that stays as it is the values around it in the type that it knows."""
        own = {value.name for value in body.input} | {each.name for each in body.initializer}
        own |= {name for node in body.node for name in node.output}
        for node in body.node:
            for index, name in enumerate(node.input):
                if name and name not in own:
                    node.input[index] = self._form(name, _FLOAT, outer)
            for inner in bodies(node):
                self._leave_alone(inner, outer)

    # what can be lowered

    def _variables(self, node: NodeProto, signature: Signature) -> set[str]:
        """Return the type variables of a node that are bound to float and may be half instead."""
        kinds = [self._types.get(name) for name in (*node.input, *node.output) if name]
        if not all(kind is not None and kind.startswith("tensor(") for kind in kinds):
            return set()  # sequences, and what is not known, are left alone
        bound = bindings(node, signature, self._types)
        formals = [signature.input(index) for index, name in enumerate(node.input) if name]
        return {
            formal.kind
            for formal in formals
            if formal is not None
            and formal.is_variable
            and bound.get(formal.kind) == _FLOAT
            and self._half.kind in formal.allowed
            and (not formal.variadic or formal.homogeneous)
        }

    @staticmethod
    def _makes(node: NodeProto, signature: Signature, variables: set[str]) -> bool:
        """Tell whether the node makes values of these types, so that something is won by halves."""
        formals = [signature.output(index) for index, name in enumerate(node.output) if name]
        return any(formal is not None and formal.kind in variables for formal in formals)

    def _as_they_are(
        self, node: NodeProto, signature: Signature, variables: set[str], scope: _Scope
    ) -> set[str]:
        """Return which variables of a node that only looks at values are best halves: those of halves."""
        singles = set()
        for index, name in enumerate(node.input):
            formal = signature.input(index)
            forms = self._kind_of(name, scope) if name else None
            if formal is not None and forms is not None and _FLOAT in forms:
                singles.add(formal.kind)
        return variables - singles

    def _why_not(
        self,
        node: NodeProto,
        signature: Signature | None,
        variables: set[str],
        scope: _Scope,
        excluded: bool,
        inside: bool,
    ) -> str | None:
        if excluded:
            return "excluded for accuracy"
        if label(node.name, node.op_type) in self._subject.shape_nodes:
            return "it computes sizes"
        if words := _UNSAFE.get(node.op_type):
            return words
        if not inside:
            for name in (*node.input, *node.output):
                if name in self._far:
                    return f"values of {name} come near the limit of {self._half.name}"
        if node.op_type in _DIVIDING and self._tiny & {*node.input}:
            self._tiny.update(node.output)
            return "it divides by a value that vanishes in halves"
        assert signature is not None  # noqa: S101 - there are variables
        for index, name in enumerate(node.input):
            formal = signature.input(index)
            if formal is not None and formal.kind in variables:
                if words := self._unfit(name, scope):
                    self._tiny.update(node.output if _UNDERFLOW in words else ())
                    return words
        return None

    def _unfit(self, name: str, scope: _Scope) -> str | None:
        """Return why a constant cannot be a half, in words; None: it can, or is no constant."""
        if not name or scope.constants.tensor(name) is None:
            return None
        if name not in self._fits:
            array = scope.constants.array(name)
            self._fits[name] = None if array is None else self._loss(name, array)
        return self._fits[name]

    def _loss(self, name: str, array: NDArray[Any]) -> str | None:
        finite = array[np.isfinite(array)]
        if not finite.size:
            return None
        largest = float(np.abs(finite).max())
        if largest > self._half.largest:
            return f"weight {name} has {largest:.4g}, beyond {self._half.name}'s {self._half.largest:.4g}"
        if not largest:
            return None
        rounded = finite.astype(self._half.dtype).astype(np.float64)
        exact = finite.astype(np.float64)
        error = float(np.sqrt(np.square(rounded - exact).sum() / np.square(exact).sum()))
        if error > _LOST:
            return f"weight {name}, at most {largest:.3g}, loses {error:.0%} {_UNDERFLOW}"
        return None

    # values and their forms

    def _read(
        self, node: NodeProto, signature: Signature | None, variables: set[str], scope: _Scope
    ) -> None:
        for index, name in enumerate(node.input):
            if not name or self._kind_of(name, scope) is None:
                continue
            formal = signature.input(index) if signature is not None else None
            wanted = self._half.kind if formal is not None and formal.kind in variables else _FLOAT
            node.input[index] = self._form(name, wanted, scope)

    def _kind_of(self, name: str, scope: _Scope) -> _Forms | None:
        if name in scope.forms:
            return scope.forms[name]
        tensor = scope.constants.tensor(name)
        if tensor is not None and tensor.data_type == TensorProto.FLOAT:
            return {_FLOAT: name}
        return None

    def _form(self, name: str, kind: str, scope: _Scope) -> str:
        """Return the name that a value has in a type, after making it where there is none."""
        forms = self._kind_of(name, scope)
        if forms is None:
            return name
        if kind in forms:
            return forms[kind]
        tensor = scope.constants.tensor(name)
        if tensor is not None and kind == self._half.kind:
            return self._constant_form(name, scope)
        fresh = self._names.fresh(f"{name}_{_short(kind)}")
        element = TensorProto.FLOAT if kind == _FLOAT else self._half.element
        source = next(iter(forms.values()))
        cast = self._names.fresh(f"{fresh}/Cast")
        scope.nodes.append(helper.make_node("Cast", [source], [fresh], name=cast, to=element))
        scope.add_form(name, kind, fresh)
        return fresh

    def _constant_form(self, name: str, scope: _Scope) -> str:
        """Add a constant's half to the graph that it is in."""
        owner = scope
        while owner.parent is not None and name not in set(owner.constants.names()):
            owner = owner.parent
        array = owner.constants.array(name)
        assert array is not None  # noqa: S101 - it is a constant there
        fresh = self._names.fresh(f"{name}_{_short(self._half.kind)}")
        with np.errstate(over="ignore"):
            halves = array.astype(self._half.dtype)
        owner.graph.initializer.append(self._sink.tensor(fresh, self._half.element, halves))
        owner.add_form(name, _FLOAT, name)
        owner.add_form(name, self._half.kind, fresh)
        return fresh

    def _make(
        self, node: NodeProto, signature: Signature | None, variables: set[str], scope: _Scope
    ) -> None:
        casts = []
        for index, name in enumerate(node.output):
            if not name:
                continue
            formal = signature.output(index) if signature is not None else None
            if formal is None or formal.kind not in variables:
                kind = self._types.get(name)
                scope.forms[name] = {_FLOAT: name} if kind == _FLOAT else None
            elif name in self._pinned:
                fresh = self._names.fresh(f"{name}_{_short(self._half.kind)}")
                node.output[index] = fresh
                cast = self._names.fresh(f"{name}/Cast")
                casts.append(
                    helper.make_node("Cast", [fresh], [name], name=cast, to=TensorProto.FLOAT)
                )
                scope.forms[name] = {_FLOAT: name, self._half.kind: fresh}
            else:
                scope.forms[name] = {self._half.kind: name}
        scope.nodes += [node, *casts]
        self._result.lowered += bool(variables) and node.op_type not in {"Cast"}


def _maps(forms: MutableMapping[str, _Forms | None]) -> list[MutableMapping[str, _Forms | None]]:
    return [*forms.maps] if isinstance(forms, ChainMap) else [forms]


def _short(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")")


def _outputs(graph: GraphProto) -> list[str]:
    """Return the names of a graph's outputs and of those of all bodies in it."""
    found = [value.name for value in graph.output]
    for node in graph.node:
        for body in bodies(node):
            found += _outputs(body)
    return found


def told(kept: Mapping[str, str]) -> str:
    """Return why nodes stayed in single precision, most frequent reasons first, for people."""
    reasons = Counter(kept.values())
    return "; ".join(f"{count} because {why}" for why, count in reasons.most_common())
