"""Proposing AcceleratorClasses for GPU nodes: once for each kind of GPU, for good.

A class that an administrator deleted must stay away, also after a restart, so what has been
proposed is kept in a ConfigMap. It is written when something was proposed, and at no other time.
"""

import logging
from collections.abc import Callable
from typing import Final

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.controller.cache import Cache
from enginewright.controller.loop import Outcome
from enginewright.controller.observe import NODE
from enginewright.controller.parse import parsed
from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import NotFound
from enginewright.kube.resources import ACCELERATOR_CLASSES, CONFIG_MAPS, NODES
from enginewright.manifests.labels import MANAGED_BY, OPERATOR
from enginewright.plan.classes import propose
from enginewright.plan.types import Config

CONFIG_MAP: Final = "enginewright-proposals"  # key of a kind of GPU -> name of its class
KEY: Final = "nodes"  # the one key of this controller's queue: all nodes are looked at together

_logger = logging.getLogger(__name__)


class ProposalReconciler:
    """Compares nodes with classes; wake it when either changes."""

    def __init__(
        self,
        api: KubeApi,
        cache: Cache,
        config: Config,
        *,
        owned: Callable[[JsonObject], JsonObject] = lambda obj: obj,
        lacks_owner: Callable[[JsonObject], bool] = lambda _stored: False,
    ) -> None:
        self._api = api
        self._owned = owned
        self._lacks_owner = lacks_owner
        self._cache = cache
        self._config = config
        self._kept: dict[str, str] | None = None  # as the ConfigMap has it; None: not read yet

    async def reconcile(self, _key: str) -> Outcome:
        """Propose what is missing. Raises KubeError."""
        if not self._config.propose_classes:
            return Outcome()
        if self._kept is None:
            self._kept = await self._load()
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
            await self._keep(proposals.made)
            self._kept = proposals.made
        return Outcome()

    async def _load(self) -> dict[str, str]:
        try:
            stored = await self._api.get(CONFIG_MAPS, self._config.namespace, CONFIG_MAP)
        except NotFound:
            return {}
        made = dict(stored.get("data") or {})
        if self._lacks_owner(stored):
            await self._keep(made)
        return made

    async def _keep(self, made: dict[str, str]) -> None:
        config_map: JsonObject = {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": CONFIG_MAPS.kind,
            "metadata": {
                "name": CONFIG_MAP,
                "namespace": self._config.namespace,
                "labels": {MANAGED_BY: OPERATOR},
            },
            "data": made,  # whole: what an apply leaves out is removed
        }
        await self._api.apply(self._owned(config_map))
