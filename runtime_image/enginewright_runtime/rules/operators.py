"""Rules on operators: which the runtime image lacks, their versions, and training modes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from enginewright_runtime.proof.parity.observing import RANDOM_OPERATORS
from enginewright_runtime.rules.base import Hit, Subject, labels, named
from enginewright_runtime.rules.contents import UnreadableError, pieces
from enginewright_runtime.rules.registry import Registry
from enginewright_runtime.rules.text import quoted, shown
from enginewright_runtime.rules.view import RawNode, domain_of

_TRAINING: Final = frozenset({"ai.onnx.training", "ai.onnx.preview.training"})
_EXPERIMENTAL: Final = frozenset({"ai.onnx.preview", "com.microsoft.experimental"})
_FIRST_WITH_IMPORTS: Final = 3  # IR version
_DROPOUT_BY_INPUT: Final = 12  # opset since which Dropout has an input training_mode


def training_operators(subject: Subject) -> Hit | None:
    """Find operators of the training domains."""
    found = [node for node in _foreign(subject) if node.domain in _TRAINING]
    if not found:
        return None
    return Hit(f"the model was exported for training: {named(found)}", labels(found))


def custom_domain(subject: Subject) -> Hit | None:
    """Find operators of domains that the runtime image lacks."""
    if subject.recipe.extensions:
        return None  # loading the model shows which operators the extensions have
    found = [
        node
        for node in _foreign(subject)
        if node.domain not in subject.registry.domains and node.domain not in _TRAINING
    ]
    if not found:
        return None
    domains = sorted({node.domain for node in found})
    return Hit(
        f"operators of domain {quoted(domains)} are not in the runtime image: {named(found)}",
        labels(found),
    )


def unknown_operator(subject: Subject) -> Hit | None:
    """Find operators that their domain does not have, at the version that the model imports."""
    found = [node for node in _judged(subject) if _schema_missing(subject, node)]
    return _unless_device(subject, missing(found, subject.registry)) if found else None


def missing(nodes: Sequence[RawNode], registry: Registry) -> Hit:
    """Return the hit that ONNX Runtime lacks these operators, with the newer opset that has them."""
    message = f"ONNX Runtime has no operator for {named(nodes)}"
    newer = _newer_opset(nodes, registry)
    if newer is None:
        return Hit(message, labels(nodes))
    return Hit(
        f"{message}: the model imports opset {nodes[0].opset}, which is older than these operators",
        labels(nodes),
        remedy=f"export with {newer} or newer",
    )


def _newer_opset(nodes: Sequence[RawNode], registry: Registry) -> str | None:
    """Return the first opset with all of the operators, if it is newer than the model's."""
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


def deprecated_operator(subject: Subject) -> Hit | None:
    """Find operators that the model's opset has deprecated."""
    found = [
        node
        for node in _judged(subject)
        if node.opset is not None
        and (schema := subject.registry.find(node.domain, node.op, node.opset)) is not None
        and schema.deprecated
    ]
    if not found:
        return None
    message = f"opset {found[0].opset} no longer has these operators: {named(found)}"
    return _unless_device(subject, Hit(message, labels(found)))


def experimental_operator(subject: Subject) -> Hit | None:
    """Find operators that may change without a new version."""
    found = [
        node
        for node in subject.view.nodes
        if node.domain in _EXPERIMENTAL and not subject.view.is_local(node)
    ]
    if not found:
        return None
    return Hit(
        f"these operators may change without notice: {named(found)}",
        labels(found),
    )


def random_operator(subject: Subject) -> Hit | None:
    """Find operators that draw random numbers."""
    found = [node for node in subject.view.nodes if node.is_standard(*RANDOM_OPERATORS)]
    if not found:
        return None
    return Hit(
        f"the model draws random numbers ({named(found)}), so outputs that depend on them"
        " differ from run to run and are compared in distribution only",
        labels(found),
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
        f"the model uses operators of {quoted(domains)} without importing a version, so each runtime"
        " chooses its own",
        labels(undeclared),
    )


def imported_twice(subject: Subject) -> Hit | None:
    """Find a domain that is imported in two versions."""
    versions: dict[str, set[int]] = {}
    for entry in subject.view.model.opset_import:
        versions.setdefault(domain_of(entry.domain), set()).add(int(entry.version))
    for domain, found in versions.items():
        if len(found) > 1:
            numbers = " and ".join(str(version) for version in sorted(found))
            return Hit(f"the model imports versions {numbers} of {shown(domain or 'ai.onnx')}")
    return None


def training_mode(subject: Subject) -> Hit | None:
    """Find Dropout and BatchNormalization in training mode."""
    dropouts = [node for node in subject.view.nodes if _drops(subject, node)]
    norms = [
        node
        for node in subject.view.nodes
        if node.is_standard("BatchNormalization") and node.integer("training_mode")
    ]
    found = [*dropouts, *norms]
    if not found:
        return None
    what = [
        *(["Dropout zeroes random values"] if dropouts else []),
        *(
            ["BatchNormalization computes its statistics from the request and updates them"]
            if norms
            else []
        ),
    ]
    return Hit(f"{named(found)} are in training mode: {', and '.join(what)}", labels(found))


def _drops(subject: Subject, node: RawNode) -> bool:
    if not node.is_standard("Dropout") or (node.opset or 0) < _DROPOUT_BY_INPUT:
        return False
    if not node.input(2):
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


def _judged(subject: Subject) -> list[RawNode]:
    """Return the nodes of known domains that are loaded as they are in the source model.

    A converted model has different ones.
    """
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
    """Return the hit as a warning where a backend with a device may support what the CPU does not."""
    if not subject.on_device:
        return hit
    backend = subject.recipe.backend
    return replace(
        hit,
        message=f"{hit.message}; whether backend {backend} supports them is found on its device",
        severity="warning",
    )
