"""Whether a GitOps controller manages a field, and so may revert a change of it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

# Field managers by which they write: Argo CD, Flux's kustomize-controller and helm-controller
_CONTROLLERS: Final = {
    "argocd-controller": "Argo CD",
    "argocd-application-controller": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
}


def reverting(managed_fields: Iterable[Mapping[str, Any]], path: tuple[str, ...]) -> str:
    """Return the GitOps controller that manages a field, by the names of its path, or its object, if any."""
    owners = sorted(_owners(managed_fields, path), reverse=True)  # of the most exact field
    return owners[0][1] if owners else ""


def _owners(
    managed_fields: Iterable[Mapping[str, Any]], path: tuple[str, ...]
) -> Iterator[tuple[int, str]]:
    for managed_field in managed_fields:
        manager = str(managed_field.get("manager") or "")
        if manager not in _CONTROLLERS or managed_field.get("subresource"):
            continue
        fields, depth = managed_field.get("fieldsV1") or {}, 0
        while depth < len(path) and f"f:{path[depth]}" in fields:
            fields, depth = fields[f"f:{path[depth]}"], depth + 1
        if depth:
            yield depth, f"{_CONTROLLERS[manager]} ({manager})"
