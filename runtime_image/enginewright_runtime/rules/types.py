"""Rules on element types that a backend lacks, and on inputs and outputs that cannot be served."""

from typing import Final

from onnx import AttributeProto, TensorProto

from enginewright_runtime.rules.base import Hit, Subject, hit_of, hit_on
from enginewright_runtime.rules.text import quote
from enginewright_runtime.rules.view import RawNode

# "Tensor Data Types" of the Open Inference Protocol v2, which the server speaks; BF16 is an addition
# of Triton's and KServe's
SERVED: Final = frozenset(
    {
        *("bool", "string", "float16", "float32", "float64", "bfloat16"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    }
)
# operators on strings only; TfIdfVectorizer also accepts integers, so its inputs decide
_STRING_OPERATORS: Final = ("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch")
DECLARE_OUTPUTS: Final = (
    "declare the tensors that clients are to get as outputs of the graph: in PyTorch return them from forward, in the"
    " file append them to graph.output"
)
_DOUBLE: Final = {
    "tensorrt": "casts float64 down to float32",
    "tensorrt-rtx": "casts float64 down to float32",
    "cuda": "computes float64 at a small fraction of the speed of float32",
}


def inputs_not_served(subject: Subject) -> Hit | None:
    """Find inputs that no request can carry."""
    names = [f"'{spec.name}' ({spec.dtype})" for spec in subject.inputs if spec.dtype not in SERVED]
    return hit_of(names, "the model cannot be served: no request can carry these inputs")


def no_output_served(subject: Subject) -> Hit | None:
    """Find a model without any output that a response can carry."""
    if not subject.outputs:
        return Hit(
            "the model cannot be served: its graph declares no outputs",
            remedy=DECLARE_OUTPUTS,
        )
    names = _outputs_not_served(subject)
    if len(names) < len(subject.outputs):
        return None
    return hit_of(
        names, "the model cannot be served: no output is a tensor that a response can carry"
    )


def outputs_left_out(subject: Subject) -> Hit | None:
    """Find outputs that no response can carry, where others can be served."""
    names = _outputs_not_served(subject)
    if len(names) == len(subject.outputs):
        return None
    return hit_of(names, "responses omit outputs that the protocol cannot carry")


def double_precision(subject: Subject) -> Hit | None:
    """Find float64 where the backend is for a GPU."""
    backend = subject.recipe.backend
    if backend not in _DOUBLE:
        return None
    nodes = [node for node in subject.view.nodes if _is_double(subject, node)]
    return _hit_on_type(subject, nodes, "float64", f"backend {backend} {_DOUBLE[backend]}")


def strings(subject: Subject) -> Hit | None:
    """Find strings where the backend does not support them."""
    if subject.recipe.backend == "cpu":
        return None
    message = (
        f"backend {subject.recipe.backend} does not support strings, so nodes that read or write"
        " them run on the CPU"
    )
    nodes = [node for node in subject.view.nodes if _has_strings(node)]
    return _hit_on_type(subject, nodes, "string", message)


def _hit_on_type(subject: Subject, nodes: list[RawNode], dtype: str, message: str) -> Hit | None:
    specs = [spec.name for spec in (*subject.inputs, *subject.outputs) if spec.dtype == dtype]
    return hit_on(nodes, message) or hit_of(quote(specs), message)


def _outputs_not_served(subject: Subject) -> list[str]:
    """Return unservable outputs with their types, except undeclared ones.

    ONNX Runtime takes strings only as NumPy arrays, and returns bfloat16 only where it is given none.
    """
    untyped = {
        value.name
        for value in subject.view.model.graph.output
        if value.type.WhichOneof("value") is None
    }
    strings = next((spec.name for spec in subject.inputs if spec.dtype == "string"), None)
    return [
        f"'{spec.name}' ({spec.dtype})"
        if spec.dtype not in SERVED
        else f"'{spec.name}' (bfloat16 beside the strings of input '{strings}')"
        for spec in subject.outputs
        if (spec.dtype not in SERVED and spec.name not in untyped)
        or (spec.dtype == "bfloat16" and strings is not None)
    ]


def _is_double(subject: Subject, node: RawNode) -> bool:
    for entry in node.proto.attribute:
        if entry.name in {"to", "dtype"} and entry.i == TensorProto.DOUBLE:
            return True
        if entry.type == AttributeProto.TENSOR and entry.t.data_type == TensorProto.DOUBLE:
            return True
    return any(
        tensor.data_type == TensorProto.DOUBLE
        for name in node.inputs
        if name and (tensor := subject.view.origin(node.scope, name, frozenset())) is not None
    )


def _has_strings(node: RawNode) -> bool:
    if node.is_standard(*_STRING_OPERATORS):
        return True
    if node.is_standard("Cast") and node.integer("to") == TensorProto.STRING:
        return True
    return any(_holds_strings(entry) for entry in node.proto.attribute)


def _holds_strings(entry: AttributeProto) -> bool:
    tensor = entry.type == AttributeProto.TENSOR and entry.t.data_type == TensorProto.STRING
    return tensor or entry.name in {"value_string", "value_strings"}
