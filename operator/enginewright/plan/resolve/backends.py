"""Which backends may serve: the candidates in order, and the promise for each.

The first candidate serves, or the model is rejected. Only policy Allow proceeds to the next one, and
the promise then names the preferred one, so that the fallback is reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from enginewright_contract.engines import LIBRARIES, why_not_optimized, why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, VARIANTS
from enginewright_contract.task import Promise

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.scalars import share
from enginewright.plan.resolve.interim_backend import refused_interim
from enginewright.plan.types import Facts, Obstacle


@dataclass(frozen=True)
class BackendCandidate:
    """One backend that may serve, and the promise that then applies."""

    backend: str
    promise: Promise


def candidates(
    facts: Facts, classes: Sequence[AcceleratorClass]
) -> tuple[BackendCandidate, ...] | Obstacle:
    """Return the candidates, the preferred one first; all classes run the same backend.

    One prepared model serves all classes, and it is prepared for one backend.
    """
    spec = facts.model.spec
    ranked_by_class = [ranking(spec, each) for each in classes]
    if len({ranked[0] for ranked in ranked_by_class}) > 1:
        pairs = ", ".join(
            f"{each.metadata.name}: {ranked[0]}"
            for each, ranked in zip(classes, ranked_by_class, strict=True)
        )
        message = (
            f"the classes resolve to different backends ({pairs}); name one backend that all of"
            " them allow in spec.backends, or create one InferenceModel per backend"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    ranked = ranked_by_class[0]
    promise = _promise(spec)
    first = ranked[0]
    wanted = ranked if promise.policy == "Allow" else ranked[:1]
    level = spec.build.optimization_level
    if level is not None and (reason := why_not_optimized(first)):
        allowed = " or ".join(sorted(name for name in LIBRARIES if not why_not_optimized(name)))
        message = (
            f"spec.build.optimizationLevel is {level}, but {reason}; choose {allowed} in"
            " spec.backends, or remove spec.build.optimizationLevel"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    if spec.build.choose == "Fastest" and first not in COMPILED_BACKENDS:
        message = (
            f"spec.build.choose is Fastest, but the backend {first} builds no engine, and backends are compared"
            f" when one is built; write {' or '.join(sorted(COMPILED_BACKENDS))} first in spec.backends, or remove"
            " spec.build.choose"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    if obstacle := refused_interim(facts, classes, wanted):
        return obstacle
    found = tuple(
        BackendCandidate(
            backend,
            promise if backend == first else promise.model_copy(update={"asked_backend": first}),
        )
        for backend in wanted
        if all(backend in _runnable(facts, each) for each in classes)
    )
    return found or _not_runnable(facts, classes, first)


def ranking(spec: InferenceModelSpec, accelerator: AcceleratorClass) -> list[str]:
    """Return the backends that may serve on a class, the preferred one first."""
    return [str(each) for each in spec.backends or accelerator.spec.backends]


def _runnable(facts: Facts, accelerator: AcceleratorClass) -> list[str]:
    capability = accelerator.spec.compute_capability
    return [
        str(each)
        for each in accelerator.spec.backends
        if VARIANTS[each] in facts.config.images and why_unusable(each, capability) is None
    ]


def _not_runnable(facts: Facts, classes: Sequence[AcceleratorClass], backend: str) -> Obstacle:
    rejecting = next(each for each in classes if backend not in _runnable(facts, each))
    runnable = ", ".join(_runnable(facts, rejecting))
    if unusable := why_unusable(backend, rejecting.spec.compute_capability):
        remedy = (
            f"choose one of {runnable} in spec.backends"
            if runnable
            else "choose another class in spec.accelerators"
        )
        message = (
            f"the preferred backend {backend} does not run on the class {rejecting.metadata.name}:"
            f" {unusable}; {remedy}"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    offers = runnable or "no backend that this installation has an image for"
    message = (
        f"the preferred backend {backend} does not run on the class {rejecting.metadata.name}, which"
        f" offers {offers}; choose one of these in spec.backends"
    )
    if backend in rejecting.spec.backends:
        message += f", or set images.runtime.{VARIANTS[backend]} in the chart's values"
    return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)


def _promise(spec: InferenceModelSpec) -> Promise:
    fallback = spec.fallback
    return Promise(
        policy=fallback.policy,
        max_compute_share=share(fallback.max_compute_share),
        max_node_share=share(fallback.max_node_share),
    )
