"""The artefact store: content-addressed, on a volume that Jobs and serving pods share."""

from enginewright_runtime.store.volume import Store

__all__ = ["Store"]
