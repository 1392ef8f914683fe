"""Which element types an operator accepts, by the schemas of ONNX and of ONNX Runtime. For child processes."""

from functools import cache
from typing import Any

from onnx import ModelProto, NodeProto
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from enginewright_runtime.graph.raw.schemas import STANDARD
from enginewright_runtime.graph.raw.signatures import (
    OperatorSignature,
    onnx_signature,
    signature_of,
)
from enginewright_runtime.graph.scoped.element_types import types_of


class OperatorSignatures:
    """Signatures of the operators of one model."""

    def __init__(self, model: ModelProto) -> None:
        self._versions = {
            "" if item.domain in STANDARD else item.domain: item.version
            for item in model.opset_import
        }
        self._own = {(function.domain, function.name) for function in model.functions}

    def of(self, node: NodeProto) -> OperatorSignature | None:
        """Return the node's signature; None for the model's functions and unknown operators."""
        if (node.domain, node.op_type) in self._own:
            return None
        domain = "" if node.domain in STANDARD else node.domain
        version = self._versions.get(domain, 1)
        return onnx_signature(node.op_type, domain, version) or _further_signature(
            node.op_type, domain, version
        )


@cache
def _further_signature(operator: str, domain: str, version: int) -> OperatorSignature | None:
    schemas = [pair for pair in _of_onnxruntime().get((domain, operator), ()) if pair[0] <= version]
    return signature_of(max(schemas, key=lambda schema: schema[0])[1]) if schemas else None


@cache
def _of_onnxruntime() -> dict[tuple[str, str], list[tuple[int, Any]]]:
    schemas: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for schema in get_all_operator_schema():
        schemas.setdefault((schema.domain, schema.name), []).append((schema.since_version, schema))
    return schemas


def element_types(model: ModelProto) -> dict[str, str]:
    """Return the type strings of all values of a sorted model, as far as schemas determine them."""
    return types_of(model, OperatorSignatures(model).of)
