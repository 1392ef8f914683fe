"""The identity of a cluster in a bucket that several clusters share: the UID of its namespace kube-system."""

import logging
from typing import Final

from enginewright.kube.api import KubeApi
from enginewright.kube.errors import KubeError, Transient
from enginewright.kube.resources import NAMESPACES
from enginewright.plan.types import Config

_OF_EVERY_CLUSTER: Final = "kube-system"  # namespace

_logger = logging.getLogger(__name__)


class BucketUser:
    """The UID that this cluster's Jobs record in the bucket; it does not change while the operator runs."""

    def __init__(self, api: KubeApi, config: Config) -> None:
        self._api = api
        self._has_bucket = config.store.bucket is not None
        self.known: str | None = None  # once it is read; never with a volume

    async def load(self) -> None:
        """Read it before the first Job; an error other than Transient, which it raises, is only logged."""
        try:
            await self.uid()
        except Transient:
            raise
        except KubeError as error:
            _logger.warning(
                "Jobs do not say in the bucket which cluster uses it: %s", error.message
            )

    async def uid(self) -> str | None:
        """Return it, or None if the store is a volume. Raises KubeError."""
        if self._has_bucket and self.known is None:
            namespace = await self._api.get(NAMESPACES, None, _OF_EVERY_CLUSTER)
            self.known = namespace["metadata"]["uid"]
        return self.known
