"""HTTPRoutes: what gateways say about them."""

from dataclasses import dataclass

from enginewright.observed.base import (
    Json,
    ObservedCondition,
    ObservedObject,
    conditions,
    identity,
    status,
)


@dataclass(frozen=True)
class RouteParent:
    """What the controller of one Gateway says about a route."""

    gateway: str  # NAMESPACE/NAME, with the listener where the reference names one
    conditions: tuple[ObservedCondition, ...]

    @property
    def accepted(self) -> bool:
        """Return whether the Gateway takes the route."""
        return any(
            (condition.type, condition.status) == ("Accepted", "True")
            for condition in self.conditions
        )

    @property
    def refusal(self) -> ObservedCondition | None:
        """Return why the Gateway does not take the route, or not all of it, if so."""
        failed = (condition for condition in self.conditions if condition.status == "False")
        return next(
            (condition for condition in failed if condition.type in ("Accepted", "ResolvedRefs")),
            None,
        )


@dataclass(frozen=True, kw_only=True)
class RouteView(ObservedObject):
    """The HTTPRoute of a model."""

    parents: tuple[RouteParent, ...]  # that have responded


def route_view(obj: Json) -> RouteView:
    """Return the view of an HTTPRoute (gateway.networking.k8s.io/v1)."""
    own = obj["metadata"].get("namespace") or ""
    return RouteView(
        **identity(obj),
        parents=tuple(
            RouteParent(_gateway(item.get("parentRef") or {}, own), conditions({"status": item}))
            for item in status(obj).get("parents") or ()
        ),
    )


def _gateway(reference: Json, own_namespace: str) -> str:
    section = f" ({reference['sectionName']})" if reference.get("sectionName") else ""
    return f"{reference.get('namespace') or own_namespace}/{reference.get('name', '')}{section}"
