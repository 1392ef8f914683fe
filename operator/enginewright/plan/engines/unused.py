"""InferenceEngines that nothing needs: since when, and when they are removed.

Removing one removes neither the engine from the store, which a collection does, nor anything that serves.
"""

from datetime import datetime

from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.scalars import whole_second
from enginewright.manifests.labels import REQUESTED_BY
from enginewright.plan.types import CollectionConfig


def unused_since(engine: InferenceEngine, now: datetime, *, needed: bool) -> datetime | None:
    """Return since when nothing needs the engine; None: it is needed, or a user has created it."""
    if needed or REQUESTED_BY not in engine.metadata.annotations:
        return None
    return engine.status.unused_since or whole_second(now)


def seconds_left(since: datetime | None, config: CollectionConfig, now: datetime) -> float | None:
    """Return in how many seconds an engine unused `since` then is removed; None: it stays."""
    if since is None or config.unused_for is None or config.dry_run or not config.enabled:
        return None
    return (since + config.unused_for - now).total_seconds()
