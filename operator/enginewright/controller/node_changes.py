"""For which models and classes a changed node may decide something. Pure."""

from dataclasses import dataclass

from enginewright.controller.cache import ObjectCache
from enginewright.controller.observe import CLAIM, NODE
from enginewright.kube.resources import ACCELERATOR_CLASSES, CLAIMS, NODES
from enginewright.manifests.placement import ARCHITECTURE
from enginewright.observed.nodes import NodeView
from enginewright.plan.types import StoreConfig


@dataclass(frozen=True)
class NodeChange:
    """A node that joined, left, or differs in what is read of it."""

    before: NodeView | None
    now: NodeView | None

    def concerns_all(self, cache: ObjectCache, store: StoreConfig | None) -> bool:
        """Return whether models of any class may be planned otherwise.

        By the architectures in the cluster, which Jobs choose from, or where one node alone can mount a store, by
        the number of nodes that take pods.
        """
        return self._changes_architectures(cache) or (
            self._takes_pods_otherwise() and not _is_shared(cache, store)
        )

    def list_classes(self, cache: ObjectCache) -> list[str]:
        """Return the classes that select the node, or did."""
        labels = [node.labels.items() for node in (self.before, self.now) if node]
        selectors = {
            entry["metadata"]["name"]: (entry.get("spec") or {}).get("nodeSelector") or {}
            for entry in cache.all(ACCELERATOR_CLASSES)
        }
        return sorted(
            name
            for name, selector in selectors.items()
            if any(selector.items() <= labelled for labelled in labels)
        )

    def _changes_architectures(self, cache: ObjectCache) -> bool:
        changed = {node.label(ARCHITECTURE) if node else "" for node in (self.before, self.now)}
        if len(changed) == 1:
            return False
        own = {node.name for node in (self.before, self.now) if node}
        others = cache.views(NODE, cache.all(NODES))
        return not changed - {""} <= {
            node.label(ARCHITECTURE) for node in others if node.name not in own
        }

    def _takes_pods_otherwise(self) -> bool:
        before, now = self.before, self.now
        if before is None or now is None:
            return True
        return (before.unschedulable, before.taints) != (now.unschedulable, now.taints)


def _is_shared(cache: ObjectCache, store: StoreConfig | None) -> bool:
    """Return whether pods on several nodes can read every store."""
    claims = cache.views(CLAIM, cache.all(CLAIMS))
    return store is not None and all(map(store.is_shared, (None, *claims)))
