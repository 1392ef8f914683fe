"""AcceleratorClasses: how many nodes each one has, and which two claim the same node."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from enginewright.api.accelerator_class import AcceleratorClass, AcceleratorClassStatus
from enginewright.api.conditions import (
    ConditionType,
    StatusReason,
    WantedCondition,
    merge_conditions,
)
from enginewright.controller.cache import Cache
from enginewright.controller.execute import Executor
from enginewright.controller.loop import Outcome
from enginewright.controller.parse import parsed
from enginewright.kube.resources import ACCELERATOR_CLASSES, NODES


class ClassReconciler:
    """Writes the status of one AcceleratorClass where it has changed."""

    def __init__(
        self,
        cache: Cache,
        executor: Executor,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cache = cache
        self._executor = executor
        self._now = now

    async def reconcile(self, name: str) -> Outcome:
        """Bring the status of the class up to date. Raises KubeError."""
        observed = self._cache.get(ACCELERATOR_CLASSES, None, name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            return Outcome(exists=False)
        this = AcceleratorClass.model_validate(observed)
        others = [
            other
            for other in parsed(AcceleratorClass, self._cache.all(ACCELERATOR_CLASSES))
            if other.metadata.name != name
        ]
        nodes = tuple(self._cache.all(NODES))
        status = AcceleratorClassStatus(
            observed_generation=this.metadata.generation,
            nodes=len(_matching(this, nodes)),
            conditions=merge_conditions(
                this.status.conditions,
                [_readiness(this, others, nodes)],
                generation=this.metadata.generation,
                now=self._now(),
            ),
        )
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        return Outcome(again=await self._executor.write_status(observed, body))


def _readiness(
    this: AcceleratorClass, others: Iterable[AcceleratorClass], nodes: Iterable[Mapping[str, Any]]
) -> WantedCondition:
    """Return whether pods can be sent to the class, and only to it."""
    mine = _matching(this, nodes)
    rivals = sorted(other.metadata.name for other in others if _matching(other, mine))
    if rivals:
        shared = f"AcceleratorClass {rivals[0]} matches"
        if len(rivals) > 1:
            shared = f"AcceleratorClasses {', '.join(rivals)} match"
        return WantedCondition(
            type=ConditionType.READY,
            status="False",
            reason=StatusReason.OVERLAPPING_CLASS,
            message=f"{shared} nodes of this class too: narrow spec.nodeSelector"
            " so that every node belongs to one class",
        )
    if not mine:
        return WantedCondition(
            type=ConditionType.READY,
            status="False",
            reason=StatusReason.NO_MATCHING_NODE,
            message="no node has the labels of spec.nodeSelector:"
            " add such a node or correct the selector (kubectl get nodes --show-labels)",
        )
    count = "1 node matches" if len(mine) == 1 else f"{len(mine)} nodes match"
    return WantedCondition(
        type=ConditionType.READY,
        status="True",
        reason=StatusReason.NODES_FOUND,
        message=f"{count} spec.nodeSelector",
    )


def _matching(
    accelerator_class: AcceleratorClass, nodes: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    selector = accelerator_class.spec.node_selector.items()
    return [node for node in nodes if selector <= (node["metadata"].get("labels") or {}).items()]
