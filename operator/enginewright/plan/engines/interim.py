"""What serves on a class until its first engine is built, if `spec.build.interim` requests it.

It is a revision like any other, with the prepared model in place of the engines that do not exist yet:
it is verified and rolled out, and the engines' revision replaces it by the usual rollout. A class on which
anything else serves gets none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginewright_contract.images import DEVICE_BACKENDS, VARIANTS

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_engine import InferenceEngine
from enginewright.api.inference_model_status import Prepared
from enginewright.plan.engines.wanted import Engines, is_ahead_of_time
from enginewright.plan.resolve.backends import (
    interim_backend,
    list_served_classes,
    why_not_precision,
)
from enginewright.plan.resolve.resolve import Target, why_no_image
from enginewright.plan.types import Facts


@dataclass(frozen=True)
class Interim:
    """What serves until the engines are built, or why that is not possible now."""

    backend: str
    image: str
    classes: frozenset[str]  # that it serves on
    why_not: str = ""


def interim_of(
    facts: Facts, target: Target, prepared: Prepared, engines: Engines
) -> Interim | None:
    """Return what serves until the engines of `target` are built, if that is requested and needed."""
    backend = interim_backend(facts.model.spec)
    if backend is None or not engines.needed or engines.complete:
        return None
    lacking = [
        device_class
        for device_class in target.classes
        if device_class.metadata.name not in engines.keys
        or device_class.metadata.name in engines.unusable
    ]
    names = frozenset(accelerator_class.metadata.name for accelerator_class in lacking)
    if names & list_served_classes(facts):
        return None
    image = facts.config.images.get(VARIANTS[backend], "")
    why_not = _why_not(facts, target, backend, prepared, lacking)
    if not why_not and backend in DEVICE_BACKENDS:
        begun = _list_begun_classes(facts)
        waits = [
            accelerator_class
            for accelerator_class in lacking
            if accelerator_class.metadata.name not in begun
        ]
        why_not = _takes_device_of_build(facts.engines, target, engines, waits)
    return Interim(backend, image, names, why_not)


def _list_begun_classes(facts: Facts) -> set[str]:
    return {
        one.name
        for deployment in facts.deployments
        if deployment.revision in facts.kept
        for one in facts.kept[deployment.revision].snapshot.classes
        if one.interim and one.name == deployment.accelerator_class
    }


def _why_not(
    facts: Facts,
    target: Target,
    backend: str,
    prepared: Prepared,
    classes: Sequence[AcceleratorClass],
) -> str:
    if why := why_no_image(facts, target, backend):
        return why
    precisions = (
        why_not_precision(prepared.precision, target.recipe.rest, device_class, backend)
        for device_class in classes
    )
    return next(filter(None, precisions), "")


def _takes_device_of_build(
    namespace_engines: Mapping[str, InferenceEngine],
    target: Target,
    engines: Engines,
    classes: Sequence[AcceleratorClass],
) -> str:
    """Return which class's pods could take the only free device, for which the build waits."""
    names = {reference.class_name: reference.name for reference in engines.references}
    for device_class in classes:
        ahead = is_ahead_of_time(target, device_class)
        engine = namespace_engines.get(names.get(device_class.metadata.name, ""))
        takes = device_class.spec.resource_name or device_class.spec.device
        if takes and not ahead and not _has_its_device(engine):
            return f"it starts once the build for {device_class.metadata.name} has its device"
    return ""


def _has_its_device(engine: InferenceEngine | None) -> bool:
    """Return whether the build runs on its device, or needs none any more."""
    if engine is None:
        return False
    status = engine.status
    failed = status.failure is not None and status.failure.lasting
    return status.placed or failed or status.engine is not None
