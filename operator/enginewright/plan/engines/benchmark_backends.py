"""Which other backends the engine's Job compares with the engine, if `spec.build.choose` requests it.

Those run the prepared model in the Job's image. A second backend with engines of its own is not among them:
its model may be prepared differently.
"""

from enginewright_contract.engines import why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, VARIANTS

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.plan.engines.other_backend import why_not_precision
from enginewright.plan.resolve.backends import ranking
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.types import Facts


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
