"""Proposing AcceleratorClasses for GPU nodes: once for each kind of GPU, for good.

A class that an administrator deleted must stay away, also after a restart, so what has been
proposed is kept in a ConfigMap. It is written when something was proposed, and at no other time.
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
from enginewright.plan.classes import propose
from enginewright.plan.types import Config

CONFIG_MAP: Final = "enginewright-proposals"  # key of a kind of GPU -> name of its class
KEY: Final = "nodes"  # the one key of this controller's queue: all nodes are looked at together

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
        )
        for wanted in proposals.apply:
            # Not forced: where somebody has taken the name meanwhile, another one is found.
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
