"""Nodes: their labels, taints and readiness."""

from collections.abc import Iterable
from dataclasses import dataclass

from enginewright.api.pods import Toleration
from enginewright.observed.base import Json, ObservedObject, conditions, identity, spec


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
    is_down: bool  # NotReady, as kubectl calls it: its kubelet says so, or is silent
    ready_since: str  # RFC 3339, if it is not down and that is known

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
    ready = next((condition for condition in conditions(obj) if condition.type == "Ready"), None)
    is_down = ready is not None and ready.status != "True"
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
        is_down=is_down,
        ready_since="" if ready is None or is_down else ready.since,
    )
