"""AcceleratorClasses: how many nodes each one has, and which ones overlap."""

from dataclasses import dataclass

from enginewright.api.accelerator_class import AcceleratorClass, AcceleratorClassStatus
from enginewright.api.conditions import merge_conditions
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.observe import NODE
from enginewright.controller.parse import parse_objects
from enginewright.controller.shared import Shared
from enginewright.kube.resources import ACCELERATOR_CLASSES, NODES
from enginewright.plan.resolve.classes import matching, readiness


@dataclass(frozen=True)
class ClassReconciler:
    """Writes the status of one AcceleratorClass if it has changed."""

    shared: Shared

    async def reconcile(self, name: str) -> ReconcileResult:
        """Bring the status of the class up to date. Raises KubeError."""
        shared, cache = self.shared, self.shared.cache
        observed = cache.get(ACCELERATOR_CLASSES, None, name)
        if observed is None or observed["metadata"].get("deletionTimestamp"):
            return ReconcileResult(exists=False)
        this = AcceleratorClass.model_validate(observed)
        others = [
            other
            for other in parse_objects(AcceleratorClass, cache.all(ACCELERATOR_CLASSES))
            if other.metadata.name != name
        ]
        nodes = cache.views(NODE, cache.all(NODES))
        status = AcceleratorClassStatus(
            observed_generation=this.metadata.generation,
            nodes=len(matching(this, nodes)),
            conditions=merge_conditions(
                this.status.conditions,
                [readiness(this, others, nodes, shared.config.product_labels)],
                generation=this.metadata.generation,
                now=shared.now(),
            ),
        )
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        return ReconcileResult(requeue=await shared.executor.write_status(observed, body))
