"""What is in a store: for people, not for stages."""

from collections.abc import Iterator
from typing import Final

from enginewright_contract.manifest import LARGEST_MANIFEST

from enginewright_runtime.store.artifacts import ENGINE, PREPARED, Artifact, ArtifactKind
from enginewright_runtime.store.disk_errors import available
from enginewright_runtime.store.medium import Leftover, Listed, Medium

KINDS: Final = (PREPARED, ENGINE)


class Inventory:
    """The artefacts of all kinds in a store, and what no artefact needs; raises StageFailure: StoreUnavailable."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium

    def artifacts(self, kind: ArtifactKind) -> Iterator[Listed]:
        """Yield all artefacts of a kind, unverified and in any order."""
        with available():
            yield from self._medium.artifacts(kind)

    def leftovers(self) -> Iterator[Leftover]:
        """Yield what neither an artefact nor a publication in progress may need.

        Raises StageFailure for files without any manifest, or for an invalid manifest, whose files are unknown.
        """
        with available():
            yield from self._medium.leftovers(self._list_named_files)

    def remove(self, leftover: Leftover) -> bool:
        """Remove a leftover, unless it was renewed or cannot be removed; return whether it is gone."""
        with available():
            return self._medium.remove(leftover)

    def _list_named_files(self) -> frozenset[str]:
        digests: set[str] = set()
        for kind in KINDS:
            for listed in self._medium.artifacts(kind):
                artifact = Artifact(kind, listed.key)
                text = self._medium.get(artifact.manifest, LARGEST_MANIFEST)
                if text is not None:
                    digests |= {file.sha256 for file in artifact.parse(text).files}
        return frozenset(digests)
