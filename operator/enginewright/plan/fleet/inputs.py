"""What administrators decide of a model's revision: what it has of that, and what the installation has instead.

Runtime images by variant, and the specs of AcceleratorClasses as JSON. One turn moves a model to all of them.
"""

from collections.abc import Iterable, Mapping

from enginewright_contract.base import canonical_json
from pydantic import ValidationError

from enginewright.api.accelerator_class import AcceleratorClass, AcceleratorClassSpec
from enginewright.api.inference_model_status import (
    RuntimeImages,
    ServingState,
    UsedClass,
    VariantImage,
)
from enginewright.manifests.snapshot import Snapshot
from enginewright.observed.moves import class_input, class_of_input
from enginewright.plan.fleet.model_images import active_snapshot, current_images
from enginewright.plan.types import Facts, Inputs


def list_configured(
    images: Mapping[str, str], classes: Iterable[AcceleratorClass]
) -> dict[str, str]:
    """Return what the installation has."""
    specs = {class_input(item.metadata.name): describe_class(item.spec) for item in classes}
    return {**images, **specs}


def find_current(facts: Facts, serving: ServingState | None) -> dict[str, str]:
    """Return what the model has of it: none before it has served.

    Of a class, a revision has what its pods need. What decides other parts of it, such as the backends, is recorded.
    """
    snapshot = active_snapshot(facts.deployments, facts.revisions, serving)
    if snapshot is None:
        return {}
    record = facts.model.status.images
    specs = {item.metadata.name: item.spec for item in facts.classes}
    for used in record.classes if record else ():
        if spec := _read(used.spec):
            specs[used.class_name] = spec
    classes = {
        class_input(one.name): describe_class(one.restore(specs[one.name]))
        for one in snapshot.classes
        if one.name in specs
    }
    return {**current_images(facts, serving), **classes}


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
    return Inputs(images, tuple(_hold_class(item, current) for item in facts.classes))


def _hold_class(device_class: AcceleratorClass, current: Mapping[str, str]) -> AcceleratorClass:
    spec = _read(current.get(class_input(device_class.metadata.name), ""))
    return device_class.model_copy(update={"spec": spec}) if spec else device_class


def carries(snapshot: Snapshot, target: Mapping[str, str], current: Mapping[str, str]) -> bool:
    """Return whether a revision has any of what the installation has instead."""
    if any(one.image in target.values() for one in snapshot.classes):
        return True
    for one in snapshot.classes:
        new, old = (_read(side.get(class_input(one.name), "")) for side in (target, current))
        if new and old and one.restore(new) == new and one.restore(old) != old:
            return True
    return False


def images_in(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the images alone, by variant."""
    return {name: value for name, value in inputs.items() if not class_of_input(name)}


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
    update = {"current": images[0], "target": images[1], "classes": classes}
    return record.model_copy(update=update)


def read_target(record: RuntimeImages) -> dict[str, str]:
    """Return what the installation had instead when the record was made."""
    classes = {class_input(used.class_name): used.target for used in record.classes if used.target}
    return {**{image.variant: image.image for image in record.target}, **classes}


def describe_class(spec: AcceleratorClassSpec) -> str:
    """Return the spec as text: the same for the same spec, also after an upgrade that adds fields."""
    return canonical_json(spec.manifest())


def _read(text: str) -> AcceleratorClassSpec | None:
    """Return the spec that a text describes, unless it is empty or of another version."""
    try:
        return AcceleratorClassSpec.model_validate_json(text) if text else None
    except ValidationError:
        return None
