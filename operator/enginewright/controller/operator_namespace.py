"""Objects in the operator's own namespace, owned by its Deployment: deleted when the release is uninstalled."""

import logging
from collections.abc import Mapping

from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import NotFound
from enginewright.kube.resources import CONFIG_MAPS, DEPLOYMENTS
from enginewright.manifests.labels import MANAGED_BY, OPERATOR

_logger = logging.getLogger(__name__)


class OperatorNamespace:
    """The operator's namespace and Deployment; without one, as outside a cluster, nothing is owned."""

    def __init__(self, api: KubeApi, namespace: str, deployment: str | None) -> None:
        self.deployment: JsonObject | None = None
        self.namespace = namespace
        self._api = api
        self._name = deployment

    async def load(self) -> None:
        """Read the Deployment. Raises KubeError."""
        if self._name is None:
            return
        try:
            self.deployment = await self._api.get(DEPLOYMENTS, self.namespace, self._name)
        except NotFound:
            _logger.warning(
                "Deployment %s/%s not found: uninstalling will not delete the operator's ConfigMaps",
                self.namespace,
                self._name,
            )

    def set_owner(self, obj: JsonObject) -> JsonObject:
        """Return an object of the operator's namespace with its owner."""
        if self.deployment is None:
            return obj
        reference = {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "name": self.deployment["metadata"]["name"],
            "uid": self.deployment["metadata"]["uid"],
        }
        return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}

    def lacks_owner(self, stored: Mapping[str, object]) -> bool:
        """Return whether a stored object must be written again only to set its owner."""
        if self.deployment is None or "metadata" not in stored:
            return False
        metadata = stored["metadata"]
        owners = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
        uid = self.deployment["metadata"]["uid"]
        return uid not in [owner["uid"] for owner in owners or ()]


class ConfigMapStore:
    """A ConfigMap of the operator's namespace, for what a restart must not forget."""

    def __init__(self, api: KubeApi, namespace: OperatorNamespace, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    async def load(self) -> dict[str, str]:
        """Return the stored data; empty if there is none. Raises KubeError."""
        try:
            stored = await self._api.get(CONFIG_MAPS, self._namespace.namespace, self._name)
        except NotFound:
            return {}
        data = dict(stored.get("data") or {})
        if self._namespace.lacks_owner(stored):
            await self.save(data)
        return data

    async def save(self, data: Mapping[str, str]) -> None:
        """Store `data` and nothing else. Raises KubeError."""
        config_map: JsonObject = {
            "apiVersion": CONFIG_MAPS.api_version,
            "kind": CONFIG_MAPS.kind,
            "metadata": {
                "name": self._name,
                "namespace": self._namespace.namespace,
                "labels": {MANAGED_BY: OPERATOR},
            },
            "data": dict(data),  # all of it: an apply removes fields that it leaves out
        }
        await self._api.apply(self._namespace.set_owner(config_map))
