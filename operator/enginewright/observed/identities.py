"""Kinds of which the plan reads little more than the identity: autoscalers, budgets, Services and claims."""

from dataclasses import dataclass

from enginewright.observed.base import Json, ObservedObject, identity, spec


@dataclass(frozen=True, kw_only=True)
class AutoscalerView(ObservedObject):
    """The HorizontalPodAutoscaler of the Deployment of the same name."""


def autoscaler_view(obj: Json) -> AutoscalerView:
    """Return the view of a HorizontalPodAutoscaler (autoscaling/v2)."""
    return AutoscalerView(**identity(obj))


@dataclass(frozen=True, kw_only=True)
class BudgetView(ObservedObject):
    """The PodDisruptionBudget of a model's pods on one accelerator class."""


def budget_view(obj: Json) -> BudgetView:
    """Return the view of a PodDisruptionBudget (policy/v1)."""
    return BudgetView(**identity(obj))


@dataclass(frozen=True, kw_only=True)
class ServiceView(ObservedObject):
    """A Service in front of a model's serving pods, or of its canary."""


def service_view(obj: Json) -> ServiceView:
    """Return the view of a Service (v1)."""
    return ServiceView(**identity(obj))


@dataclass(frozen=True, kw_only=True)
class ClaimView(ObservedObject):
    """A PersistentVolumeClaim."""

    access_modes: tuple[str, ...]


def claim_view(obj: Json) -> ClaimView:
    """Return the view of a PersistentVolumeClaim (core/v1)."""
    return ClaimView(**identity(obj), access_modes=tuple(spec(obj).get("accessModes") or ()))
