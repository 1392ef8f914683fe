"""Which runtime images a model has, by variant."""

from collections.abc import Iterable

from enginewright_contract.images import COMPILED_BACKENDS, VARIANTS

from enginewright.api.inference_model_status import ServingState, VariantImage
from enginewright.manifests.snapshot import Snapshot
from enginewright.plan.history.outcomes import active_snapshot
from enginewright.plan.resolve.backends import interim_backend
from enginewright.plan.types import Facts

_COMPILED = frozenset(VARIANTS[compiled_backend] for compiled_backend in COMPILED_BACKENDS)


def current_images(facts: Facts, serving: ServingState | None) -> dict[str, str]:
    """Return the images that the model has by variant: of what serves, of rejected backends, and of interims.

    A rejected backend is tried again with another image, and an engine is compared again with other backends, so
    that is a move as well. An interim moves together with the engines, to images of one release.
    """
    status, configured = facts.model.status, facts.config.images
    snapshot = active_snapshot(facts, serving)
    if snapshot is None:
        return {}
    recorded = by_variant(status.images.current) if status.images else {}
    backends = {rejected_backend.backend for rejected_backend in status.rejected_backends}
    backends |= {
        name for choice in status.choices for name in (choice.backend, choice.engine_backend)
    }
    if any(
        device_class.engine_key is None and not device_class.interim
        for device_class in snapshot.classes
    ):
        # beside a chosen backend, also once the spec does not request a choice any more
        engines = (facts.engines.get(engine.name) for engine in status.engines)
        backends |= {engine.spec.backend for engine in engines if engine}
    interim = interim_backend(facts.model.spec)
    if interim and any(
        device_class.interim or device_class.engine_key for device_class in snapshot.classes
    ):
        backends.add(interim)
    variants = {variant for backend in backends if (variant := VARIANTS.get(backend)) in configured}
    current = {
        item: recorded.get(item, configured[item]) for item in sorted(filter(None, variants))
    }
    for device_class in snapshot.classes:
        if variant := VARIANTS.get(device_class.backend):
            current[variant] = device_class.image
    if any(
        device_class.interim for device_class in snapshot.classes
    ):  # which has the new image before the engines
        current = {**_of_builds(facts, snapshot), **current}
        current |= {item: recorded[item] for item in recorded if item in {*current, *_COMPILED}}
    return current


def _of_builds(facts: Facts, snapshot: Snapshot) -> dict[str, str]:
    """Return the images, by variant, that build the engines for which an interim serves."""
    classes = {device_class.name for device_class in snapshot.classes if device_class.interim}
    return {
        VARIANTS[spec.backend]: spec.build.image
        for spec in (engine.spec for engine in facts.find_built_from(snapshot.prepared_key))
        if spec.class_name in classes
    }


def by_variant(images: Iterable[VariantImage]) -> dict[str, str]:
    """Return recorded images by variant."""
    return {image.variant: image.image for image in images}
