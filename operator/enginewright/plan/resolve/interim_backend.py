"""Which backend `spec.build.interim` names, whether the classes can run it, and which ones need none."""

from collections.abc import Collection, Sequence

from enginewright_contract.engines import why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, DEVICE_BACKENDS, VARIANTS

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.manifests.labels import CLASS, COMPONENT, REVISION, SERVE
from enginewright.plan.history.served import served_before
from enginewright.plan.types import Facts, Obstacle


def interim_backend(spec: InferenceModelSpec) -> str | None:
    """Return the backend that serves until an engine is built; None: none does."""
    return None if spec.build.interim == "None" else spec.build.interim.lower()


def refused_interim(
    facts: Facts, classes: Sequence[AcceleratorClass], candidates: Collection[str]
) -> Obstacle | None:
    """Return why the requested interim cannot serve on these classes; None: it can, or none of the candidates needs one.

    Every node has a CPU; a device is used only with the backends that its class allows.
    """
    backend = interim_backend(facts.model.spec)
    if backend is None or COMPILED_BACKENDS.isdisjoint(candidates):
        return None
    if served_classes(facts).issuperset(each.metadata.name for each in classes):
        return None
    variant = VARIANTS[backend]
    asked = f"spec.build.interim is {facts.model.spec.build.interim}, but"
    if variant not in facts.config.images:
        message = (
            f"{asked} this installation has no image for the backend {backend}; set"
            f" images.runtime.{variant} in the chart's values, or change spec.build.interim"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    for each in classes if backend in DEVICE_BACKENDS else ():
        name = each.metadata.name
        if backend not in each.spec.backends:
            why = f"the class {name} does not allow the backend {backend}"
        elif unusable := why_unusable(backend, each.spec.compute_capability):
            why = f"the backend {backend} does not run on the class {name}: {unusable}"
        else:
            continue
        message = f"{asked} {why}; write CPU or None"
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    return None


def served_classes(facts: Facts) -> set[str]:
    """Return the classes on which anything but an interim serves or has served last: these need no interim."""
    before = served_before(facts)
    found = {each.class_name for each in before.classes if not each.interim} if before else set()
    ready = {
        (pod.label(CLASS), pod.label(REVISION))
        for pod in facts.pods
        if pod.label(COMPONENT) == SERVE and pod.ready and not pod.leaving
    }
    snapshots = {each.revision: each.kept.snapshot for each in facts.revisions if each.kept}
    return found | {
        each.name
        for revision, snapshot in snapshots.items()
        for each in snapshot.classes
        if not each.interim
        and ((before and before.last_complete == revision) or (each.name, revision) in ready)
    }
