"""Services: only their identity."""

from dataclasses import dataclass

from enginewright.observed.base import Json, ObservedObject, identity


@dataclass(frozen=True, kw_only=True)
class ServiceView(ObservedObject):
    """A Service in front of a model's serving pods, or of its canary."""


def service_view(obj: Json) -> ServiceView:
    """Return the view of a Service (v1)."""
    return ServiceView(**identity(obj))
