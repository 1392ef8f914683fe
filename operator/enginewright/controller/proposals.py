"""Proposing AcceleratorClasses for GPU nodes, once for each kind of GPU.

A class that an administrator deleted must not be proposed again, also after a restart, so a ConfigMap
records what has been proposed. It is written only when something was proposed.
"""

import logging
from typing import Final

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.controller.cache import ObjectCache
from enginewright.controller.loop import ReconcileResult
from enginewright.controller.observe import NODE
from enginewright.controller.operator_namespace import ConfigMapStore, OperatorNamespace
from enginewright.controller.parse import parsed
from enginewright.kube.api import KubeApi
from enginewright.kube.resources import ACCELERATOR_CLASSES, NODES
from enginewright.plan.resolve.classes import propose
from enginewright.plan.types import Config

CONFIG_MAP: Final = "enginewright-proposals"  # key of a kind of GPU -> name of its class
KEY: Final = "nodes"  # the only key of this controller's queue: all nodes are handled together

_logger = logging.getLogger(__name__)


class ProposalReconciler:
    """Compares nodes with classes; runs when either changes."""

    def __init__(
        self,
        api: KubeApi,
        cache: ObjectCache,
        config: Config,
        namespace: OperatorNamespace,
    ) -> None:
        self._api = api
        self._memory = ConfigMapStore(api, namespace, CONFIG_MAP)
        self._cache = cache
        self._config = config
        self._kept: dict[str, str] | None = None  # as the ConfigMap has it; None: not read yet

    async def reconcile(self, _key: str) -> ReconcileResult:
        """Propose what is missing. Raises KubeError."""
        if not self._config.propose_classes:
            return ReconcileResult()
        if self._kept is None:
            self._kept = await self._memory.load()
        proposals = propose(
            self._cache.views(NODE, self._cache.all(NODES)),
            parsed(AcceleratorClass, self._cache.all(ACCELERATOR_CLASSES)),
            self._config.images.keys(),
            self._kept,
            self._config.product_labels,
        )
        for wanted in proposals.apply:
            # Not forced: if the name has been taken meanwhile, the next reconcile finds another one.
            await self._api.apply(wanted, force=False)
            spec = wanted["spec"]
            (selector,) = spec["nodeSelector"].items()
            _logger.info(
                "proposed AcceleratorClass %s: nodes with %s=%s, resource %s, backends %s",
                wanted["metadata"]["name"],
                *selector,
                spec["resourceName"],
                ", ".join(spec["backends"]),
            )
        if proposals.made != self._kept:
            await self._memory.save(proposals.made)
            self._kept = proposals.made
        return ReconcileResult()
