"""An operator's input and output types, from ONNX's schema or ONNX Runtime's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import NodeProto


@dataclass(frozen=True)
class Formal:
    """One parameter of an operator."""

    kind: str  # a type variable, "T", or a type, "tensor(float)"
    allowed: frozenset[str]  # type strings
    variadic: bool
    homogeneous: bool  # of a variadic one: all values have one type

    @property
    def is_variable(self) -> bool:
        """Return whether the type is a variable, which the node's inputs bind."""
        return "(" not in self.kind

    @property
    def binds(self) -> bool:
        """Return whether one value binds the variable; a Loop's variadic values may differ in type."""
        return self.is_variable and (self.homogeneous or not self.variadic)


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


@cache
def onnx_signature(operator: str, domain: str, version: int) -> OperatorSignature | None:
    """Return the signature of an operator of ONNX's own domains; None if it has none."""
    try:
        return signature_of(onnx.defs.get_schema(operator, version, domain))
    except onnx.defs.SchemaError:
        return None


def signature_of(schema: Any) -> OperatorSignature:  # noqa: ANN401 - ONNX's or ONNX Runtime's, of similar form
    """Return the types in a schema."""
    constraints = {
        type_constraint.type_param_str: frozenset(type_constraint.allowed_type_strs)
        for type_constraint in schema.type_constraints
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


def bindings(
    node: NodeProto, signature: OperatorSignature, types: Mapping[str, str]
) -> dict[str, str]:
    """Return the types that the node's inputs bind to type variables."""
    bound: dict[str, str] = {}
    for index, name in enumerate(node.input):
        formal = signature.input(index)
        if formal is not None and formal.binds and name in types:
            bound.setdefault(formal.kind, types[name])
    return bound


def output_types(
    node: NodeProto, signature: OperatorSignature, types: Mapping[str, str]
) -> list[str | None]:
    """Return the types of the node's outputs; None where its inputs do not determine them."""
    bound = bindings(node, signature, types)
    kinds: list[str | None] = []
    for index in range(len(node.output)):
        formal = signature.output(index)
        if formal is None or formal.is_variable:
            kinds.append(bound.get(formal.kind) if formal and formal.binds else None)
        else:
            kinds.append(formal.kind)
    return kinds
