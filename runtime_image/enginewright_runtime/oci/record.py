"""What Jobs have pushed, as they record it in the store.

An account that may push to the repository may replace its tags, those of other namespaces too. So an image counts only
if a Job has computed it from the files of this store. A lost record costs one look at all files.
"""

import logging
from typing import Final

from enginewright_contract.keys import content_hash

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.oci.layout import is_digest
from enginewright_runtime.store import Store

_log: Final = logging.getLogger(__name__)
_REPOSITORY_DIGITS: Final = 16


class PushRecord:
    """The digests of the layers of one image in one repository."""

    def __init__(self, store: Store, repository: str, tag: str) -> None:
        self._store = store
        self._tag = tag
        self._name = f"image-{tag}-{content_hash(repository)[:_REPOSITORY_DIGITS]}"

    def read(self, count: int) -> list[str] | None:
        """Return the digests, if `count` layers are recorded; raises StageFailure: StoreUnavailable."""
        content = self._store.get_cache(self._name)
        digests = (content or b"").decode(errors="replace").split()
        return digests if len(digests) == count and all(map(is_digest, digests)) else None

    def write(self, digests: list[str]) -> None:
        """Record digests; a failure is only logged."""
        try:
            self._store.put_cache(self._name, "\n".join(digests).encode())
        except StageFailure as failure:
            _log.warning("the push of image %s is not recorded: %s", self._tag, failure.message)
