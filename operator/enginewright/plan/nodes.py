"""Which nodes take pods, as far as cordons and taints decide it."""

from collections.abc import Iterable, Mapping

from enginewright.api.pods import Toleration
from enginewright.plan.types import Object


def takes_pods(node: Object, tolerations: Iterable[Toleration]) -> bool:
    """Tell whether a pod with these tolerations may be scheduled onto the node."""
    spec = node.get("spec") or {}
    known = tuple(tolerations)
    return not spec.get("unschedulable") and all(
        any(_tolerates(one, taint) for one in known)
        for taint in spec.get("taints") or ()
        if taint.get("effect") != "PreferNoSchedule"
    )


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    """Match as the scheduler does (k8s.io/api core/v1, Toleration.ToleratesTaint)."""
    if toleration.effect and toleration.effect != taint.get("effect"):
        return False
    if toleration.key and toleration.key != taint.get("key"):
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == (taint.get("value") or "")
