"""The operator's own Deployment: it owns what the operator makes in its own namespace.

So Kubernetes' garbage collector deletes that when the release is uninstalled, and the operator,
which is gone by then, has nothing to clean up.
"""

import logging
from collections.abc import Mapping

from enginewright.kube.api import JsonObject, KubeApi
from enginewright.kube.errors import NotFound
from enginewright.kube.resources import DEPLOYMENTS

_logger = logging.getLogger(__name__)


class Home:
    """Knows the Deployment; without one, as outside a cluster, nothing is owned."""

    def __init__(self, api: KubeApi, namespace: str, deployment: str | None) -> None:
        self.deployment: JsonObject | None = None
        self._api = api
        self._namespace = namespace
        self._name = deployment

    async def load(self) -> None:
        """Read the Deployment. Raises KubeError."""
        if self._name is None:
            return
        try:
            self.deployment = await self._api.get(DEPLOYMENTS, self._namespace, self._name)
        except NotFound:
            _logger.warning(
                "there is no Deployment %s/%s: what is made there stays when it is uninstalled",
                self._namespace,
                self._name,
            )

    def owned(self, obj: JsonObject) -> JsonObject:
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
        """Tell whether an object that is there is to be written anew, for the owner alone."""
        if self.deployment is None or "metadata" not in stored:
            return False
        metadata = stored["metadata"]
        owners = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
        uid = self.deployment["metadata"]["uid"]
        return uid not in [each["uid"] for each in owners or ()]
