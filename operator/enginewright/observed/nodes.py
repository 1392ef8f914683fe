"""Nodes: their labels and taints."""

from collections.abc import Iterable
from dataclasses import dataclass

from enginewright.api.pods import Toleration
from enginewright.observed.base import Json, ObservedObject, identity, spec


@dataclass(frozen=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def is_tolerated_by(self, toleration: Toleration) -> bool:
        """Return whether a toleration matches it (k8s.io/api core/v1, Toleration.ToleratesTaint)."""
        if toleration.effect and toleration.effect != self.effect:
            return False
        if toleration.key and toleration.key != self.key:
            return False
        if toleration.operator == "Exists":
            return True
        return bool(toleration.key) and toleration.value == self.value


@dataclass(frozen=True, kw_only=True)
class NodeView(ObservedObject):
    """A node."""

    unschedulable: bool  # cordoned
    taints: tuple[Taint, ...]

    def takes_pods(self, tolerations: Iterable[Toleration]) -> bool:
        """Return whether pods with these tolerations can be scheduled on it."""
        tolerations = tuple(tolerations)
        return not self.unschedulable and all(
            any(map(taint.is_tolerated_by, tolerations))
            for taint in self.taints
            if taint.effect != "PreferNoSchedule"
        )


def node_view(obj: Json) -> NodeView:
    """Return the view of a Node (core/v1)."""
    return NodeView(
        **identity(obj),
        unschedulable=bool(spec(obj).get("unschedulable")),
        taints=tuple(
            Taint(
                str(item.get("key") or ""),
                str(item.get("value") or ""),
                str(item.get("effect") or ""),
            )
            for item in spec(obj).get("taints") or ()
        ),
    )
