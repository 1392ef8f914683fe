"""Which element types an operator takes and makes, as its schema says: ONNX's or ONNX Runtime's."""

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
        """Tell whether the type is bound by what the node is given."""
        return "(" not in self.kind

    @property
    def binds(self) -> bool:
        """Tell whether one value of it says what the variable stands for; a Loop's are of any type each."""
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
    """Return the signature of an operator of ONNX's own domains; None where there is none."""
    try:
        return signature_of(onnx.defs.get_schema(operator, version, domain))
    except onnx.defs.SchemaError:
        return None


def signature_of(schema: Any) -> OperatorSignature:  # noqa: ANN401 - ONNX's schema or ONNX Runtime's, alike in form
    """Return what a schema says of types."""
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


def bindings(
    node: NodeProto, signature: OperatorSignature, types: Mapping[str, str]
) -> dict[str, str]:
    """Return what the type variables of the node's inputs stand for."""
    bound: dict[str, str] = {}
    for index, name in enumerate(node.input):
        formal = signature.input(index)
        if formal is not None and formal.binds and name in types:
            bound.setdefault(formal.kind, types[name])
    return bound


def output_types(
    node: NodeProto, signature: OperatorSignature, types: Mapping[str, str]
) -> list[str | None]:
    """Return the types of the node's outputs, None for those that its inputs do not tell."""
    bound = bindings(node, signature, types)
    found: list[str | None] = []
    for index in range(len(node.output)):
        formal = signature.output(index)
        if formal is None or formal.is_variable:
            found.append(bound.get(formal.kind) if formal and formal.binds else None)
        else:
            found.append(formal.kind)
    return found
