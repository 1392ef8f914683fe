"""What tells those apart who use a part of a bucket: none knows what the others need.

A cluster by the UID of its namespace kube-system or, since several releases may have a group of one name, the
operator's own namespace.
"""

import logging
from typing import Final

from enginewright.kube.api import KubeApi
from enginewright.kube.errors import KubeError, Transient
from enginewright.kube.resources import NAMESPACES
from enginewright.plan.types import Config

_OF_EVERY_CLUSTER: Final = "kube-system"  # namespace

_logger = logging.getLogger(__name__)


class BucketUsers:
    """The UIDs under which this operator's Jobs are known in the bucket; they do not change while it runs."""

    def __init__(self, api: KubeApi, config: Config) -> None:
        self._api = api
        self._config = config
        self._uids: dict[str, str] = {}  # by name of the namespace

    async def load(self) -> None:
        """Read them before the first Job; what may not be read is only reported. Raises Transient."""
        store = self._config.store
        if store.bucket is None:
            return
        for name in (_OF_EVERY_CLUSTER, *((self._config.namespace,) if store.groups else ())):
            try:
                await self._uid(name)
            except Transient:
                raise
            except KubeError as error:
                _logger.warning(
                    "Jobs do not say in the bucket which cluster uses it: %s", error.message
                )

    async def of_part(self, part: str) -> str | None:
        """Return who uses a part of the bucket; None: it is a volume. Raises KubeError."""
        return None if self._config.store.bucket is None else await self._uid(self._name(part))

    def known(self, namespace: str) -> str | None:
        """Return who uses the part of a namespace, if that is known; None also for a volume."""
        return self._uids.get(self._name(self._config.store.part(namespace)))

    def _name(self, part: str) -> str:
        """Return the namespace whose UID it is."""
        is_group = any(each.part == part for each in self._config.store.groups)
        return self._config.namespace if is_group else _OF_EVERY_CLUSTER

    async def _uid(self, name: str) -> str:
        if name not in self._uids:
            found = await self._api.get(NAMESPACES, None, name)
            self._uids[name] = found["metadata"]["uid"]
        return self._uids[name]
