"""The artefact store: content-addressed, on a volume that Jobs and serving pods share."""

from enginewright_runtime.store.volume import ENGINE, PREPARED, ArtifactKind, Store

__all__ = ["ENGINE", "PREPARED", "ArtifactKind", "Store"]
