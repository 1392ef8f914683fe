"""Rules on operators: which the runtime image lacks, their versions, and training modes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from enginewright_runtime.core.model_files import TENSORRT
from enginewright_runtime.proof.parity.observing import RANDOM_OPERATORS
from enginewright_runtime.rules.base import Hit, Subject, hit_on, labels, list_nodes
from enginewright_runtime.rules.contents import UnreadableError, pieces
from enginewright_runtime.rules.registry import Registry
from enginewright_runtime.rules.text import join_quoted, show
from enginewright_runtime.rules.view import RawNode, domain_of

_TRAINING: Final = frozenset({"ai.onnx.training", "ai.onnx.preview.training"})
_EXPERIMENTAL: Final = frozenset({"ai.onnx.preview", "com.microsoft.experimental"})
_FIRST_WITH_IMPORTS: Final = 3  # IR version
_DROPOUT_BY_INPUT: Final = 12  # opset since which Dropout has an input training_mode
_OF_TENSORRT: Final = (
    "name backend tensorrt or tensorrt-rtx in spec.backends, whose parser has them, or export in ONNX's"
    " own QuantizeLinear and DequantizeLinear"
)


def training_operators(subject: Subject) -> Hit | None:
    """Find operators of the training domains."""
    nodes = [node for node in _foreign(subject) if node.domain in _TRAINING]
    return hit_on(nodes, "the model was exported for training")


def custom_domain(subject: Subject) -> Hit | None:
    """Find operators of domains that the runtime image lacks; of TensorRT's own, its parser decides."""
    if subject.recipe.extensions:
        return None  # loading the model shows which operators the extensions have
    nodes = [
        node
        for node in _foreign(subject)
        if node.domain not in subject.registry.domains
        and node.domain not in _TRAINING
        and not (subject.compiled and node.domain == TENSORRT)
    ]
    domains = sorted({node.domain for node in nodes})
    hit = hit_on(nodes, f"operators of domain {join_quoted(domains)} are not in the runtime image")
    return replace(hit, remedy=_OF_TENSORRT) if hit and domains == [TENSORRT] else hit


def find_unknown_operators(subject: Subject) -> Hit | None:
    """Find operators that their domain does not have, at the version that the model imports."""
    nodes = [node for node in _find_unconverted(subject) if _schema_missing(subject, node)]
    return _unless_device(subject, missing(nodes, subject.registry)) if nodes else None


def missing(nodes: Sequence[RawNode], registry: Registry) -> Hit:
    """Return the hit that ONNX Runtime lacks these operators, with the newer opset that has them."""
    message = f"ONNX Runtime has no operator for {list_nodes(nodes)}"
    newer = _newer_opset(nodes, registry)
    if newer is None:
        return Hit(message, labels(nodes))
    return Hit(
        f"{message}: the model imports opset {nodes[0].opset}, which is older than these operators",
        labels(nodes),
        remedy=f"export with {newer} or newer",
    )


def _newer_opset(nodes: Sequence[RawNode], registry: Registry) -> str | None:
    domains = {node.domain for node in nodes}
    if len(domains) > 1:
        return None
    newest = 0
    for node in nodes:
        first = registry.first_version(node.domain, node.op)
        if first is None or node.opset is None or first <= node.opset:
            return None
        newest = max(newest, first)
    (domain,) = domains
    return f"opset {newest} of {domain}" if domain else f"opset {newest}"


def find_deprecated_operators(subject: Subject) -> Hit | None:
    """Find operators that the model's opset has deprecated."""
    nodes = [
        node
        for node in _find_unconverted(subject)
        if node.opset is not None
        and (schema := subject.registry.find(node.domain, node.op, node.opset)) is not None
        and schema.deprecated
    ]
    if not nodes:
        return None
    message = f"opset {nodes[0].opset} no longer has these operators: {list_nodes(nodes)}"
    return _unless_device(subject, Hit(message, labels(nodes)))


def experimental_operator(subject: Subject) -> Hit | None:
    """Find operators that may change without a new version."""
    nodes = [
        node
        for node in subject.view.nodes
        if node.domain in _EXPERIMENTAL and not subject.view.is_local(node)
    ]
    return hit_on(nodes, "these operators may change without notice")


def random_operator(subject: Subject) -> Hit | None:
    """Find operators that draw random numbers."""
    nodes = [node for node in subject.view.nodes if node.is_standard(*RANDOM_OPERATORS)]
    return hit_on(
        nodes,
        "the model draws random numbers, so only the distributions of outputs that depend on them"
        " are compared",
    )


def no_import(subject: Subject) -> Hit | None:
    """Find a model that imports no operator set."""
    model = subject.view.model
    if model.opset_import or model.ir_version < _FIRST_WITH_IMPORTS:
        return None
    return Hit("the model imports no operator set, so its operators are undefined")


def domain_not_imported(subject: Subject) -> Hit | None:
    """Find nodes of domains that the model does not import."""
    if not subject.view.model.opset_import:
        return None
    undeclared = [
        node
        for node in subject.view.nodes
        if node.opset is None and not subject.view.is_local(node)
    ]
    if not undeclared:
        return None
    domains = sorted({node.domain or "ai.onnx" for node in undeclared})
    return Hit(
        f"the model imports no version of {join_quoted(domains)}, so each runtime chooses its own",
        labels(undeclared),
    )


def find_double_import(subject: Subject) -> Hit | None:
    """Find a domain that is imported in two versions."""
    versions: dict[str, set[int]] = {}
    for entry in subject.view.model.opset_import:
        versions.setdefault(domain_of(entry.domain), set()).add(int(entry.version))
    for domain, imported in versions.items():
        if len(imported) > 1:
            numbers = " and ".join(str(version) for version in sorted(imported))
            return Hit(f"the model imports versions {numbers} of {show(domain or 'ai.onnx')}")
    return None


def training_mode(subject: Subject) -> Hit | None:
    """Find Dropout and BatchNormalization in training mode."""
    dropouts = [node for node in subject.view.nodes if _drops(subject, node)]
    norms = [
        node
        for node in subject.view.nodes
        if node.is_standard("BatchNormalization") and node.integer("training_mode")
    ]
    nodes = [*dropouts, *norms]
    effects = []
    if dropouts:
        effects.append("Dropout zeroes random values")
    if norms:
        effects.append("BatchNormalization computes its statistics from the request")
    return hit_on(nodes, f"nodes are in training mode, in which {' and '.join(effects)}")


def _drops(subject: Subject, node: RawNode) -> bool:
    by_input = node.is_standard("Dropout") and (node.opset or 0) >= _DROPOUT_BY_INPUT
    if not by_input or not node.input(2):
        return False
    mode = subject.view.constant(node.scope, node.input(2))
    if mode is None:
        return False
    try:
        return any(bool(np.any(piece)) for piece in pieces(mode, subject.folder))
    except UnreadableError:
        return False


def _foreign(subject: Subject) -> list[RawNode]:
    return [
        node
        for node in subject.view.nodes
        if (node.domain in _TRAINING or node.domain not in subject.registry.domains)
        and not subject.view.is_local(node)
    ]


def _find_unconverted(subject: Subject) -> list[RawNode]:
    """Return the nodes of known domains that load as they are in the source; those of a converted model differ."""
    if subject.converted or subject.recipe.extensions:
        return []
    return [
        node
        for node in subject.view.nodes
        if node.domain in subject.registry.domains and not subject.view.is_local(node)
    ]


def _schema_missing(subject: Subject, node: RawNode) -> bool:
    if (node.domain, node.op) not in subject.registry.schemas:
        return True
    return (
        node.opset is not None and subject.registry.find(node.domain, node.op, node.opset) is None
    )


def _unless_device(subject: Subject, hit: Hit) -> Hit:
    """Return the hit as a warning where only a device shows whether the backend supports what the CPU does not."""
    if not subject.on_device:
        return hit
    backend = subject.recipe.backend
    return replace(
        hit,
        message=f"{hit.message}; whether backend {backend} supports them is found on its device",
        severity="warning",
    )
