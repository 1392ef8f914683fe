"""The artefact store: content-addressed, on a volume that Jobs and serving pods share."""

from enginewright_runtime.store.volume import ENGINE, PREPARED, Kind, Store

__all__ = ["ENGINE", "PREPARED", "Kind", "Store"]
