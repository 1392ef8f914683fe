"""What the provider that is to serve an engine does not load, known before anything is built."""

from typing import Final

from enginewright.contract.engines import PROVIDERS, unserved_tensors, whole_only
from enginewright.contract.report import name_nodes

from enginewright_runtime.rules.base import Hit, Subject, labels, named
from enginewright_runtime.rules.types import SERVED
from enginewright_runtime.rules.view import RawNode

# docs/operators.md of onnx-tensorrt for TensorRT 10.15: "N" in column Supported, less those that ONNX
# defines by other operators, of which engines are built where that helps.
UNKNOWN_TO_TENSORRT: Final = (
    *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Col2Im", "Compress"),
    *("ConcatFromSequence", "ConvInteger", "DFT", "Det", "ImageDecoder", "MatMulInteger"),
    *("MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial", "Optional"),
    *("OptionalGetElement", "OptionalHasElement", "QLinearConv", "QLinearMatMul"),
    *("RegexFullMatch", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
    *("SequenceInsert", "SequenceLength", "SplitToSequence", "StringNormalizer"),
    *("TfIdfVectorizer", "Unique"),
)


def outside_the_engine(subject: Subject) -> Hit | None:
    """Find nodes that no engine holds, where the provider loads an engine of the whole model only."""
    backend = subject.recipe.backend
    limit = whole_only(backend)
    if limit is None or subject.recipe.extensions:
        return None  # what plug-ins bring only the builder can tell
    found = [node for node in subject.view.graph.nodes if _stays_outside(subject, node)]
    if not found:
        return None
    return Hit(f"backend {backend} has no operator for {named(found)}, and {limit}", labels(found))


def unserved_types(subject: Subject) -> Hit | None:
    """Find inputs and outputs of types that the engine's provider refuses."""
    backend = subject.recipe.backend
    # of what no request or answer carries other rules tell
    tensors = [each for each in (*subject.inputs, *subject.outputs) if each.dtype in SERVED]
    found = unserved_tensors(backend, tensors)
    if not found:
        return None
    return Hit(
        f"{PROVIDERS[backend].title} refuses a model with inputs or outputs of these types:"
        f" {name_nodes(list(found))}"
    )


def _stays_outside(subject: Subject, node: RawNode) -> bool:
    if not node.is_standard(*UNKNOWN_TO_TENSORRT) or subject.view.is_local(node):
        return False
    given = [name for name in node.inputs if name]
    # of constants alone it may be computed beforehand
    return any(subject.view.constant(node.scope, name) is None for name in given)
