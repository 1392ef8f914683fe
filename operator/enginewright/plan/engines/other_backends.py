"""Other backends than the target's: whether they can serve its prepared model, and which ones an engine's Job compares."""

from typing import Final, get_args

from enginewright_contract.engines import why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, VARIANTS
from enginewright_contract.precisions import supported
from enginewright_contract.task import Precision

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.plan.resolve.backends import ranking
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.types import Facts

_PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)


def why_no_image(facts: Facts, target: Target, backend: str) -> str:
    """Return why the installation's image for a backend cannot serve the model now; empty: it can."""
    image = facts.config.images.get(VARIANTS[backend], "")
    if not image:
        return f"this installation has no image for the backend {backend}"
    if failure := facts.image_failures.get(image):
        return f"cannot probe the runtime image {image}: {failure}"
    found = facts.images.get(image)
    if found is None:
        return f"probing the runtime image {image}"
    if backend not in found.backends:
        return f"the runtime image {image} lacks the backend {backend}"
    verified = target.recipe.ort_version
    if found.ort_version != verified:  # the sidecar would refuse it
        return (
            f"the model is verified with ONNX Runtime {verified} of {target.image}, but {image} has"
            f" {found.ort_version}"
        )
    return ""


def why_not_precision(
    precision: str | None, accelerator: AcceleratorClass, backend: str
) -> str | None:
    """Return why a backend does not run a prepared model of this precision on a class; None: it does."""
    known = next((each for each in _PRECISIONS if each == precision), None)
    if known is None:  # that of the source
        return None
    reason = supported(known, accelerator.spec.compute_capability, backend)
    return reason and f"the prepared model is {known}: {reason}"


def benchmark_backends(
    facts: Facts, target: Target, precision: str | None, accelerator: AcceleratorClass
) -> tuple[str, ...]:
    """Return the backends to compare with the engine of a class, in the order of `spec.backends`.

    Args:
        facts: the model and its cluster.
        target: with the engine's backend and image.
        precision: of the prepared model; None: the source's own.
        accelerator: the class.
    """
    if facts.model.spec.build.choose != "Fastest":
        return ()
    return tuple(
        each
        for each in ranking(facts.model.spec, accelerator)
        if each not in COMPILED_BACKENDS
        and each in accelerator.spec.backends
        and each in facts.images[target.image].backends
        and VARIANTS[each] in facts.config.images
        and why_not_precision(precision, accelerator, each) is None
        and why_unusable(each, accelerator.spec.compute_capability) is None
    )
