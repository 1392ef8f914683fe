"""What each backend does with If, Loop and Scan, as its documentation says.

ONNX Runtime runs all three on its CPU and CUDA providers (docs/OperatorKernels.md of onnxruntime),
so nothing is found there. What OpenVINO does with a model's own is seen when it loads the model.
TensorRT's parser takes them under conditions (docs/operators.md of onnx-tensorrt, for TensorRT 10):
If: outputs of both branches of one rank; Loop: scan outputs of a fixed length, loop-carried values
of one shape. That a model breaks them is found where TensorRT-RTX 1.7 was seen to refuse it; it
takes branches whose outputs have one name, and a Scan over integers, which the page says it does not.
"""

from typing import Final

from enginewright.contract.report import name_nodes
from onnx import ValueInfoProto

from enginewright_runtime.core.logs import counted
from enginewright_runtime.graph.raw.graphs import bodies
from enginewright_runtime.rules.base import Hit, Subject, labels, named
from enginewright_runtime.rules.view import RawNode

FLOW: Final = ("If", "Loop", "Scan")


def control_flow(subject: Subject) -> Hit | None:
    """Find control flow where TensorRT parses the model."""
    if not subject.compiled:
        return None
    found = [node for node in subject.view.nodes if node.is_standard(*FLOW)]
    if not found:
        return None
    message = (
        f"backend {subject.recipe.backend} takes control flow only under conditions: {named(found)}"
    )
    if refused := [why for node in found if (why := _refused(node)) is not None]:
        message += f"; not these: {name_nodes(refused)}"
    if constant := sum(_has_constant_condition(subject, node) for node in found):
        message += f"; {counted(constant, 'condition')} of {len(found)} can be folded away"
    return Hit(message, labels(found))


def _refused(node: RawNode) -> str | None:
    """Return what is refused, as far as the model declares it."""
    graphs = list(bodies(node.proto))
    if node.op == "If" and len(graphs) > 1:
        for first, second in zip(graphs[0].output, graphs[1].output, strict=False):
            one, other = _rank(first), _rank(second)
            if one is not None and other is not None and one != other:
                return (
                    f"{node.label}, whose branches give {one} or {other} dimensions, unless its"
                    " condition is known beforehand"
                )
    if node.op == "Loop" and node.bodies and not node.input(1):
        go_on = node.bodies[0].inputs[1:2]
        if any(name in go_on for inner in node.bodies[0].nodes for name in inner.inputs):
            return f"{node.label}, whose body reads the condition that it is not given"
    return None


def _rank(value: ValueInfoProto) -> int | None:
    tensor = value.type.tensor_type
    return len(tensor.shape.dim) if tensor.HasField("shape") else None


def _has_constant_condition(subject: Subject, node: RawNode) -> bool:
    return node.op == "If" and subject.view.constant(node.scope, node.input(0)) is not None
