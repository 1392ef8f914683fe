"""Rules on which operator sets a model imports."""

from typing import Final

from enginewright_runtime.rules.base import Hit, Subject, labels
from enginewright_runtime.rules.text import quoted, shown
from enginewright_runtime.rules.view import domain_of

_FIRST_WITH_IMPORTS: Final = 3  # IR version


def no_import(subject: Subject) -> Hit | None:
    """Find a model that says nothing of its operators' versions."""
    model = subject.view.model
    if model.opset_import or model.ir_version < _FIRST_WITH_IMPORTS:
        return None
    return Hit("the model imports no operator set, so no operator in it has a meaning")


def domain_not_imported(subject: Subject) -> Hit | None:
    """Find nodes of domains that the model has no version of."""
    if not subject.view.model.opset_import:
        return None
    strangers = [
        node
        for node in subject.view.nodes
        if node.opset is None and not subject.view.is_local(node)
    ]
    if not strangers:
        return None
    domains = sorted({node.domain or "ai.onnx" for node in strangers})
    return Hit(
        f"the model uses operators of {quoted(domains)} and imports no version of it, so each runtime"
        " takes the version that it likes",
        labels(strangers),
    )


def imported_twice(subject: Subject) -> Hit | None:
    """Find a domain with two versions."""
    versions: dict[str, set[int]] = {}
    for entry in subject.view.model.opset_import:
        versions.setdefault(domain_of(entry.domain), set()).add(int(entry.version))
    for domain, found in versions.items():
        if len(found) > 1:
            numbers = " and ".join(str(version) for version in sorted(found))
            return Hit(f"the model imports versions {numbers} of {shown(domain or 'ai.onnx')}")
    return None
