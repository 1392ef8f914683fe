"""Kinds of which the plan reads little more than the identity: autoscalers, budgets, Services and claims."""

from dataclasses import dataclass

from enginewright.observed.base import Json, ObservedObject, identity, spec, status


@dataclass(frozen=True, kw_only=True)
class AutoscalerView(ObservedObject):
    """The HorizontalPodAutoscaler of the Deployment of the same name."""


@dataclass(frozen=True, kw_only=True)
class BudgetView(ObservedObject):
    """The PodDisruptionBudget of a model's pods on one accelerator class."""


@dataclass(frozen=True, kw_only=True)
class ServiceView(ObservedObject):
    """A Service in front of a model's serving pods, or of its canary."""


@dataclass(frozen=True, kw_only=True)
class ClaimView(ObservedObject):
    """A PersistentVolumeClaim."""

    access_modes: tuple[str, ...]
    capacity: str  # of its volume, such as 20Gi, once it is bound


def claim_view(obj: Json) -> ClaimView:
    """Return the view of a PersistentVolumeClaim (core/v1)."""
    capacity = status(obj).get("capacity") or {}
    return ClaimView(
        **identity(obj),
        access_modes=tuple(spec(obj).get("accessModes") or ()),
        capacity=str(capacity.get("storage") or ""),
    )
