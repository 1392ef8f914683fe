"""Proposing AcceleratorClasses for GPU nodes, once for each kind of GPU.

A class that an administrator deleted must not be proposed again, also after a restart, so a ConfigMap
records what has been proposed. It is written only when something was proposed.
"""

import logging
from typing import Final

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.observe import NODE
from enginewright.controller.operator_namespace import ConfigMapStore
from enginewright.controller.parse import parse_objects
from enginewright.controller.shared import Shared
from enginewright.kube.resources import ACCELERATOR_CLASSES, NODES
from enginewright.plan.resolve.classes import propose

CONFIG_MAP: Final = "enginewright-proposals"  # key of a kind of GPU -> name of its class
KEY: Final = "nodes"  # the only key of this controller's queue: all nodes are handled together

_logger = logging.getLogger(__name__)


class ProposalReconciler:
    """Compares nodes with classes; runs when either changes."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._store = ConfigMapStore(shared.api, shared.own_namespace, CONFIG_MAP)
        self._proposed: dict[str, str] | None = None  # as the ConfigMap has it, once it is read

    async def reconcile(self, _key: str) -> ReconcileResult:
        """Propose what is missing. Raises KubeError."""
        cache, config = self._shared.cache, self._shared.config
        if not config.propose_classes:
            return ReconcileResult()
        if self._proposed is None:
            self._proposed = await self._store.load()
        proposals = propose(
            cache.views(NODE, cache.all(NODES)),
            parse_objects(AcceleratorClass, cache.all(ACCELERATOR_CLASSES)),
            config.images.keys(),
            self._proposed,
            config.product_labels,
        )
        for proposal in proposals.apply:
            # Not forced: if the name has been taken meanwhile, the next reconcile finds another one.
            await self._shared.api.apply(proposal, force=False)
            spec = proposal["spec"]
            (selector,) = spec["nodeSelector"].items()
            _logger.info(
                "proposed AcceleratorClass %s: nodes with %s=%s, resource %s, backends %s",
                proposal["metadata"]["name"],
                *selector,
                spec["resourceName"],
                ", ".join(spec["backends"]),
            )
        if proposals.made != self._proposed:
            await self._store.save(proposals.made)
            self._proposed = proposals.made
        return ReconcileResult()
