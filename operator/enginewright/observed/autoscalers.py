"""HorizontalPodAutoscalers: only their identity."""

from dataclasses import dataclass

from enginewright.observed.base import Json, ObservedObject, identity


@dataclass(frozen=True, kw_only=True)
class AutoscalerView(ObservedObject):
    """The HorizontalPodAutoscaler of the Deployment of the same name."""


def autoscaler_view(obj: Json) -> AutoscalerView:
    """Return the view of a HorizontalPodAutoscaler (autoscaling/v2)."""
    return AutoscalerView(**identity(obj))
