"""AcceleratorClasses: how many nodes each one has, and which ones overlap."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from enginewright.api.accelerator_class import AcceleratorClass, AcceleratorClassStatus
from enginewright.api.conditions import merge_conditions
from enginewright.controller.cache import ObjectCache
from enginewright.controller.execute import Executor
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.observe import NODE
from enginewright.controller.parse import parsed
from enginewright.kube.resources import ACCELERATOR_CLASSES, NODES
from enginewright.plan.resolve.classes import matching, readiness


@dataclass(frozen=True)
class ClassReconciler:
    """Writes the status of one AcceleratorClass if it has changed."""

    cache: ObjectCache
    executor: Executor
    product_labels: tuple[str, ...] = ()  # the administrator's, beside NVIDIA's
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def reconcile(self, name: str) -> ReconcileResult:
        """Bring the status of the class up to date. Raises KubeError."""
        observed = self.cache.get(ACCELERATOR_CLASSES, None, name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            return ReconcileResult(exists=False)
        this = AcceleratorClass.model_validate(observed)
        others = [
            other
            for other in parsed(AcceleratorClass, self.cache.all(ACCELERATOR_CLASSES))
            if other.metadata.name != name
        ]
        nodes = self.cache.views(NODE, self.cache.all(NODES))
        status = AcceleratorClassStatus(
            observed_generation=this.metadata.generation,
            nodes=len(matching(this, nodes)),
            conditions=merge_conditions(
                this.status.conditions,
                [readiness(this, others, nodes, self.product_labels)],
                generation=this.metadata.generation,
                now=self.now(),
            ),
        )
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        return ReconcileResult(requeue=await self.executor.write_status(observed, body))
