"""The artefact store: content-addressed, shared by Jobs and serving pods."""

from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store.artifacts import ENGINE, PREPARED, ArtifactKind
from enginewright_runtime.store.medium import Medium
from enginewright_runtime.store.mounted_image import MountedImage
from enginewright_runtime.store.node_cache import NodeCache
from enginewright_runtime.store.store import Store
from enginewright_runtime.store.volume import VolumeMedium

__all__ = [
    "ENGINE",
    "PREPARED",
    "ArtifactKind",
    "MountedImage",
    "NodeCache",
    "Store",
    "open_medium",
    "open_store",
]


def open_store(
    paths: Paths,
    kind: ArtifactKind = PREPARED,
    cache: NodeCache | None = None,
    image: MountedImage | None = None,
) -> Store:
    """Return the artefacts of one kind in the store of this pod; raises as `open_medium`."""
    return Store(open_medium(paths), kind, cache, image)


def open_medium(paths: Paths, *, by_hand: bool = False) -> Medium:
    """Return the bucket or volume of this pod's store, without connecting to it; raises StageFailure: StoreUnavailable."""
    if paths.store_address is None:
        return VolumeMedium(paths.store)
    # imported on demand: it is slow to load, and volumes need none
    from enginewright_runtime.store.bucket import BucketMedium  # noqa: PLC0415 - above

    return BucketMedium.at(paths.store_address, paths.store_credentials, by_hand=by_hand)
