"""What administrators decide of a model's revision: what it has of that, and what the installation has instead.

Runtime images by variant, the specs of AcceleratorClasses as JSON, the address of the store, and the labels that name
products, by which engines are shared. One turn moves a model to all of them.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from enginewright_contract.base import canonical_json
from pydantic import ValidationError

from enginewright.api.accelerator_class import AcceleratorClass, AcceleratorClassSpec
from enginewright.api.inference_model_status import (
    RuntimeImages,
    ServingState,
    UsedClass,
    UsedSetting,
    VariantImage,
)
from enginewright.manifests.snapshot import Snapshot
from enginewright.manifests.store_access import StoreBucket
from enginewright.observed.moves import class_input, class_of_input
from enginewright.plan.fleet.model_images import current_images
from enginewright.plan.history.outcomes import active_snapshot
from enginewright.plan.types import Config, Facts, Inputs

_STORE: Final = "store"
_LABELS: Final = "productLabels"


def list_installed(config: Config) -> dict[str, str]:
    """Return what the chart's values have."""
    store = config.store
    labels = canonical_json(config.product_labels)
    return {**config.images, _STORE: _describe_store(store.claim, store.bucket), _LABELS: labels}


def list_configured(
    installed: Mapping[str, str], classes: Iterable[AcceleratorClass]
) -> dict[str, str]:
    """Return what the installation has: its values and classes."""
    specs = {class_input(item.metadata.name): describe_class(item.spec) for item in classes}
    return {**installed, **specs}


def find_current(facts: Facts, serving: ServingState | None) -> dict[str, str]:
    """Return what the model has of it: none before it has served.

    Of a class, a revision has what its pods need. What decides other parts of it, such as the backends, is recorded.
    """
    snapshot = active_snapshot(facts, serving)
    if snapshot is None:
        return {}
    record = facts.model.status.images
    settings = {_STORE: _find_store(facts, snapshot)}
    if any(one.engine_key for one in snapshot.classes):
        labels = canonical_json(facts.config.product_labels)
        settings[_LABELS] = _list_settings(record).get(_LABELS, labels)
    specs = {item.metadata.name: item.spec for item in facts.classes}
    for used in record.classes if record else ():
        if spec := _read(used.spec):
            specs[used.class_name] = spec
    classes = {
        class_input(one.name): describe_class(one.restore(specs[one.name]))
        for one in snapshot.classes
        if one.name in specs
    }
    return {**current_images(facts, serving), **classes, **settings}


def differing(configured: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """Return what the installation has instead; what it does not have any more is no move."""
    return {
        name: configured[name]
        for name, value in current.items()
        if configured.get(name, value) != value
    }


def hold(facts: Facts, current: Mapping[str, str]) -> Inputs:
    """Return what the model is planned with until it moves: what it has, and of the rest what the installation has."""
    images = {name: current.get(name, image) for name, image in facts.config.images.items()}
    classes = tuple(_hold_class(item, current) for item in facts.classes)
    labels = json.loads(current[_LABELS]) if _LABELS in current else facts.config.product_labels
    return Inputs(images, classes, tuple(labels))


def _hold_class(device_class: AcceleratorClass, current: Mapping[str, str]) -> AcceleratorClass:
    spec = _read(current.get(class_input(device_class.metadata.name), ""))
    return device_class.model_copy(update={"spec": spec}) if spec else device_class


def carries(
    facts: Facts, snapshot: Snapshot, target: Mapping[str, str], current: Mapping[str, str]
) -> bool:
    """Return whether a revision has any of what the installation has instead."""
    if any(one.image in target.values() for one in snapshot.classes):
        return True
    if _find_store(facts, snapshot) == target.get(_STORE):
        return True
    for one in snapshot.classes:
        new, old = (_read(side.get(class_input(one.name), "")) for side in (target, current))
        if new and old and one.restore(new) == new and one.restore(old) != old:
            return True
    return False


def images_in(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the images alone, by variant."""
    others = (_STORE, _LABELS)
    return {k: v for k, v in inputs.items() if k not in others and not class_of_input(k)}


def has_classes(inputs: Mapping[str, str]) -> bool:
    """Return whether there are classes among them."""
    return any(map(class_of_input, inputs))


def record_inputs(
    record: RuntimeImages, current: Mapping[str, str], target: Mapping[str, str]
) -> RuntimeImages:
    """Return the record with these."""
    images = [
        tuple(
            VariantImage(variant=name, image=image)
            for name, image in sorted(images_in(side).items())
        )
        for side in (current, target)
    ]
    classes = tuple(
        UsedClass(class_name=class_of_input(name), spec=spec, target=target.get(name, ""))
        for name, spec in sorted(current.items())
        if class_of_input(name)
    )
    settings = tuple(
        UsedSetting(name=name, value=current[name], target=target.get(name, ""))
        for name in (_STORE, _LABELS)
        if name in current
    )
    update = {"current": images[0], "target": images[1], "classes": classes, "settings": settings}
    return record.model_copy(update=update)


def read_target(record: RuntimeImages) -> dict[str, str]:
    """Return what the installation had instead when the record was made."""
    classes = {class_input(used.class_name): used.target for used in record.classes if used.target}
    settings = {used.name: used.target for used in record.settings if used.target}
    return {**{image.variant: image.image for image in record.target}, **classes, **settings}


def describe_class(spec: AcceleratorClassSpec) -> str:
    """Return the spec as text: the same for the same spec, also after an upgrade that adds fields."""
    return canonical_json(spec.manifest())


def _describe_store(claim: str, bucket: StoreBucket | None) -> str:
    if bucket is None:
        return claim
    return canonical_json({**bucket.model_dump(), "uri": bucket.uri.rstrip("/")})


def _find_store(facts: Facts, snapshot: Snapshot) -> str:
    """Return the store that a revision reads, as it is configured for all namespaces."""
    store, namespace = facts.config.store, facts.model.metadata.namespace
    if snapshot.store == store.access(namespace):
        return _describe_store(store.claim, store.bucket)
    bucket, part = snapshot.store_bucket, f"/{namespace}"
    whole = bucket and bucket.model_copy(update={"uri": bucket.uri.removesuffix(part)})
    return _describe_store(snapshot.store_claim, whole)


def _list_settings(record: RuntimeImages | None) -> dict[str, str]:
    return {used.name: used.value for used in record.settings} if record else {}


def _read(text: str) -> AcceleratorClassSpec | None:
    """Return the spec that a text describes, unless it is empty or of another version."""
    try:
        return AcceleratorClassSpec.model_validate_json(text) if text else None
    except ValidationError:
        return None
