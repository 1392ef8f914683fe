"""What tells clusters apart that use a part of a bucket: the UID of namespace kube-system. None knows what the others need."""

import logging
from typing import Final

from enginewright.kube.api import KubeApi
from enginewright.kube.errors import KubeError, Transient
from enginewright.kube.resources import NAMESPACES
from enginewright.plan.types import Config

_OF_EVERY_CLUSTER: Final = "kube-system"  # namespace

_logger = logging.getLogger(__name__)


class BucketUser:
    """The UID under which this cluster's Jobs are known in the bucket; it does not change while the operator runs."""

    def __init__(self, api: KubeApi, config: Config) -> None:
        self._api = api
        self._has_bucket = config.store.bucket is not None
        self.known: str | None = None  # None: not known yet, or the store is a volume

    async def load(self) -> None:
        """Read it before the first Job; what may not be read is only reported. Raises Transient."""
        try:
            await self.uid()
        except Transient:
            raise
        except KubeError as error:
            _logger.warning(
                "Jobs do not say in the bucket which cluster uses it: %s", error.message
            )

    async def uid(self) -> str | None:
        """Return it; None: the store is a volume. Raises KubeError."""
        if self._has_bucket and self.known is None:
            found = await self._api.get(NAMESPACES, None, _OF_EVERY_CLUSTER)
            self.known = found["metadata"]["uid"]
        return self.known
