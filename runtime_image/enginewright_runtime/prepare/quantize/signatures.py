"""Which element types an operator takes, and so which values of a node can be of lower precision.

ONNX's schemas tell for its own domains; ONNX Runtime's for the rest that it knows, com.microsoft's
operators and a library's of the user. Native code: to be used in a child process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.scoped.element_types import types_of


@dataclass(frozen=True)
class Formal:
    """One parameter of an operator."""

    kind: str  # a type variable, "T", or a type, "tensor(float)"
    allowed: frozenset[str]  # type strings
    variadic: bool
    homogeneous: bool  # of a variadic one: all values have one type

    @property
    def is_variable(self) -> bool:
        """Tell whether the type is bound by what the node is given."""
        return "(" not in self.kind


@dataclass(frozen=True)
class OperatorSignature:
    """Parameters of one operator."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]

    def input(self, index: int) -> Formal | None:
        """Return the parameter at `index`, the last one for variadic; None past the end."""
        return _at(self.inputs, index)

    def output(self, index: int) -> Formal | None:
        """Return the parameter at `index`, the last one for variadic; None past the end."""
        return _at(self.outputs, index)


def _at(formals: Sequence[Formal], index: int) -> Formal | None:
    if index < len(formals):
        return formals[index]
    return formals[-1] if formals and formals[-1].variadic else None


class OperatorSignatures:
    """Signatures of the operators of one model."""

    def __init__(self, model: ModelProto) -> None:
        self._versions = {
            "" if each.domain in STANDARD else each.domain: each.version
            for each in model.opset_import
        }
        self._own = {(function.domain, function.name) for function in model.functions}

    def of(self, node: NodeProto) -> OperatorSignature | None:
        """Return the node's signature; None for the model's own functions and for strangers."""
        if (node.domain, node.op_type) in self._own:
            return None
        domain = "" if node.domain in STANDARD else node.domain
        return _signature(node.op_type, domain, self._versions.get(domain, 1))


@cache
def _signature(operator: str, domain: str, version: int) -> OperatorSignature | None:
    try:
        return _read(onnx.defs.get_schema(operator, version, domain))
    except onnx.defs.SchemaError:
        pass
    known = [each for each in _of_onnxruntime().get((domain, operator), ()) if each[0] <= version]
    return _read(max(known, key=lambda each: each[0])[1]) if known else None


@cache
def _of_onnxruntime() -> dict[tuple[str, str], list[tuple[int, Any]]]:
    found: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for schema in get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append((schema.since_version, schema))
    return found


def _read(schema: Any) -> OperatorSignature:  # noqa: ANN401 - ONNX's schema or ONNX Runtime's, alike in form
    constraints = {
        each.type_param_str: frozenset(each.allowed_type_strs) for each in schema.type_constraints
    }

    def formal(parameter: Any) -> Formal:  # noqa: ANN401 - likewise
        kind = getattr(parameter, "type_str", None) or parameter.typeStr
        homogeneous = getattr(parameter, "is_homogeneous", None)
        return Formal(
            kind=kind,
            allowed=constraints.get(kind, frozenset({kind})),
            variadic=parameter.option.name.lower() == "variadic",
            homogeneous=parameter.isHomogeneous if homogeneous is None else homogeneous,
        )

    return OperatorSignature(tuple(map(formal, schema.inputs)), tuple(map(formal, schema.outputs)))


def element_types(model: ModelProto) -> dict[str, str]:
    """Return the type strings of all values, of subgraphs too, as far as schemas tell.

    The model is sorted, and no two scopes share a name (`scopes.rename_apart`); it is left
    unchanged.
    """
    found = types_of(model)
    _fill(model.graph, OperatorSignatures(model), found)
    return found


def _fill(graph: GraphProto, signatures: OperatorSignatures, found: dict[str, str]) -> None:
    for node in graph.node:
        for body in bodies(node):
            _fill(body, signatures, found)
        if all(name in found for name in node.output if name):
            continue
        signature = signatures.of(node)
        if signature is None:
            continue
        bound = bindings(node, signature, found)
        for index, name in enumerate(node.output):
            formal = signature.output(index)
            if not name or name in found or formal is None:
                continue
            kind = bound.get(formal.kind) if formal.is_variable else formal.kind
            if kind is not None:
                found[name] = kind


def bindings(
    node: NodeProto, signature: OperatorSignature, types: Mapping[str, str]
) -> dict[str, str]:
    """Return what the type variables of the node's inputs stand for."""
    bound: dict[str, str] = {}
    for index, name in enumerate(node.input):
        formal = signature.input(index)
        if formal is not None and formal.is_variable and name in types:
            bound.setdefault(formal.kind, types[name])
    return bound
