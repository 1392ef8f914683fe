"""Which backends may serve: the candidates in order and the promise for each, the interim one, and those that are readmitted.

The first candidate serves, or the model is rejected. Only policy Allow proceeds to the next one, and
the promise then names the preferred one, so that the fallback is reported. A rejected one is a candidate again with
the same inputs if a node joins, which may have what the others lacked, such as a driver, or if its user asks by an
annotation, because a node that was repaired looks as before.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, get_args

from enginewright_contract.engines import LIBRARIES, why_not_optimized, why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, DEVICE_BACKENDS, VARIANTS
from enginewright_contract.precisions import why_no_rest, why_unsupported
from enginewright_contract.reasons import Fault, Repeats, reason_named
from enginewright_contract.task import Precision, Promise, Rest

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.inference_model_status import RejectedBackend
from enginewright.api.scalars import share, whole_second
from enginewright.manifests.labels import CLASS, COMPONENT, RETRY, REVISION, SERVE
from enginewright.observed.nodes import NodeView
from enginewright.plan.history.outcomes import find_serving
from enginewright.plan.resolve.classes import matching
from enginewright.plan.resolve.recipe import find_rest
from enginewright.plan.resolve.sources import annotation
from enginewright.plan.types import Config, Facts, Obstacle

_PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)


@dataclass(frozen=True)
class BackendCandidate:
    """One backend that may serve, and the promise that then applies."""

    backend: str
    promise: Promise


def candidates(
    facts: Facts, classes: Sequence[AcceleratorClass]
) -> tuple[BackendCandidate, ...] | Obstacle:
    """Return the candidates, the preferred one first: one prepared model, and so one backend, serves all classes."""
    spec = facts.model.spec
    ranked_by_class = [ranking(spec, device_class) for device_class in classes]
    if len({ranked[0] for ranked in ranked_by_class}) > 1:
        pairs = ", ".join(
            f"{accelerator_class.metadata.name}: {ranked[0]}"
            for accelerator_class, ranked in zip(classes, ranked_by_class, strict=True)
        )
        message = (
            f"the classes resolve to different backends ({pairs}); name one backend that all of"
            " them allow in spec.backends, or create one InferenceModel per backend"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    promise = _promise(spec)
    first = ranked_by_class[0][0]
    backends = ranked_by_class[0] if promise.policy == "Allow" else [first]
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
    if obstacle := refuse_interim(facts, classes, backends):
        return obstacle
    runnable = tuple(
        BackendCandidate(
            backend,
            promise if backend == first else promise.model_copy(update={"asked_backend": first}),
        )
        for backend in backends
        if all(backend in _runnable(facts.config, device_class) for device_class in classes)
    )
    return runnable or _not_runnable(facts.config, classes, first)


def ranking(spec: InferenceModelSpec, accelerator: AcceleratorClass) -> list[str]:
    """Return the backends that may serve on a class, the preferred one first."""
    return [str(backend) for backend in spec.backends or accelerator.spec.backends]


def why_not_precision(
    precision: str | None, rest: Rest | None, accelerator: AcceleratorClass, backend: str
) -> str | None:
    """Return why a backend does not run a prepared model of these precisions on a class, if it does not."""
    lower = next((item for item in _PRECISIONS if item == precision), None)
    if lower is None:  # that of the source
        return None
    capability = accelerator.spec.compute_capability
    reason = why_unsupported(lower, capability, backend) or why_no_rest(rest, backend)
    return reason and f"the prepared model is {lower}: {reason}"


def benchmark_backends(
    facts: Facts, image: str, precision: str | None, accelerator: AcceleratorClass
) -> tuple[str, ...]:
    """Return the backends to compare with the engine of a class, in the order of `spec.backends`.

    `image` is the engine's; `precision` is the prepared model's, unless it has the source's.
    """
    if facts.model.spec.build.choose != "Fastest":
        return ()
    return tuple(
        item
        for item in ranking(facts.model.spec, accelerator)
        if item not in COMPILED_BACKENDS
        and item in accelerator.spec.backends
        and item in facts.images[image].backends
        and VARIANTS[item] in facts.config.images
        and why_not_precision(precision, find_rest(facts.model.spec), accelerator, item) is None
        and why_unusable(item, accelerator.spec.compute_capability) is None
    )


def _runnable(config: Config, accelerator: AcceleratorClass) -> list[str]:
    capability = accelerator.spec.compute_capability
    return [
        str(backend)
        for backend in accelerator.spec.backends
        if VARIANTS[backend] in config.images and why_unusable(backend, capability) is None
    ]


def _not_runnable(config: Config, classes: Sequence[AcceleratorClass], backend: str) -> Obstacle:
    rejecting = next(
        device_class for device_class in classes if backend not in _runnable(config, device_class)
    )
    runnable = ", ".join(_runnable(config, rejecting))
    message = f"the preferred backend {backend} does not run on the class {rejecting.metadata.name}"
    if unusable := why_unusable(backend, rejecting.spec.compute_capability):
        one = f"one of {runnable} in spec.backends"
        message += (
            f": {unusable}; choose {one if runnable else 'another class in spec.accelerators'}"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    offers = runnable or "no backend that this installation has an image for"
    message += f", which offers {offers}; choose one of these in spec.backends"
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


def interim_backend(spec: InferenceModelSpec) -> str | None:
    """Return the backend that serves until an engine is built, if one is to."""
    return None if spec.build.interim == "None" else spec.build.interim.lower()


def refuse_interim(
    facts: Facts, classes: Sequence[AcceleratorClass], candidates: Collection[str]
) -> Obstacle | None:
    """Return why the requested interim cannot serve on these classes, if a candidate needs one.

    Every node has a CPU; a device is used only with the backends that its class allows.
    """
    backend = interim_backend(facts.model.spec)
    if backend is None or COMPILED_BACKENDS.isdisjoint(candidates):
        return None
    if list_served_classes(facts).issuperset(
        device_class.metadata.name for device_class in classes
    ):
        return None
    variant = VARIANTS[backend]
    asked = f"spec.build.interim is {facts.model.spec.build.interim}, but"
    if variant not in facts.config.images:
        message = (
            f"{asked} this installation has no image for the backend {backend}; set"
            f" images.runtime.{variant} in the chart's values, or change spec.build.interim"
        )
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    for device_class in classes if backend in DEVICE_BACKENDS else ():
        name = device_class.metadata.name
        if backend not in device_class.spec.backends:
            why = f"the class {name} does not allow the backend {backend}"
        elif unusable := why_unusable(backend, device_class.spec.compute_capability):
            why = f"the backend {backend} does not run on the class {name}: {unusable}"
        else:
            continue
        message = f"{asked} {why}; write CPU or None"
        return Obstacle(StatusReason.BACKEND_NOT_ALLOWED, message)
    return None


def list_served_classes(facts: Facts) -> set[str]:
    """Return the classes on which anything but an interim serves or has served last: these need no interim."""
    before = find_serving(facts)
    recorded = (
        {device_class.class_name for device_class in before.classes if not device_class.interim}
        if before
        else set()
    )
    ready = {
        (pod.label(CLASS), pod.label(REVISION))
        for pod in facts.pods
        if pod.label(COMPONENT) == SERVE and pod.ready and not pod.leaving
    }
    complete = before.last_complete if before else None
    return recorded | {
        device_class.name
        for stored in facts.revisions
        if stored.kept
        for device_class in stored.kept.snapshot.classes
        if not device_class.interim
        and (stored.revision == complete or (device_class.name, stored.revision) in ready)
    }


def is_readmitted(
    facts: Facts, classes: Sequence[AcceleratorClass], rejected: RejectedBackend
) -> bool:
    """Return whether a rejected backend is tried again although it would be with the same inputs."""
    if rejected.rejected_at is None:  # by an earlier release: it is recorded from now on
        return False
    retry = annotation(facts.model, RETRY)
    if retry and retry != rejected.retry:
        return True
    reason = reason_named(rejected.reason)
    return (
        reason is not None
        and reason.facets.repeats is not Repeats.EVERYWHERE
        and reason.facets.fault is not Fault.REVISION
        and bool(rejected.revision)
        # no node may stop what serves, nor begin what its user would have to resume
        and facts.model.spec.rollout.strategy == "Surge"
        and not facts.model.spec.rollout.paused
        and any(deployment.available for deployment in facts.deployments)
        and _has_joined(facts.nodes, classes, rejected)
    )


def rejection_recorded(
    facts: Facts, classes: Sequence[AcceleratorClass], rejected: RejectedBackend
) -> RejectedBackend:
    """Return the rejection with what must differ for it to end: the annotation, or the newest node."""
    # nodes have the API server's clock: one that is ahead of ours joins but once
    since = max((whole_second(facts.now), *_list_joins(facts.nodes, classes)))
    update = {
        "rejected_at": since,
        "nodes": len(_list_nodes(facts.nodes, classes)),
        "retry": annotation(facts.model, RETRY),
    }
    return rejected.model_copy(update=update)


def _has_joined(
    nodes: Collection[NodeView], classes: Sequence[AcceleratorClass], rejected: RejectedBackend
) -> bool:
    """Return whether a node has joined the classes since a backend was rejected: was created, or got its labels."""
    since, before = rejected.rejected_at, rejected.nodes
    if since and any(item > since for item in _list_joins(nodes, classes)):
        return True
    return before is not None and len(_list_nodes(nodes, classes)) > before


def _list_joins(nodes: Collection[NodeView], classes: Sequence[AcceleratorClass]) -> list[datetime]:
    mine = _list_nodes(nodes, classes)
    return [datetime.fromisoformat(node.created) for node in mine if node.created]


def _list_nodes(nodes: Collection[NodeView], classes: Sequence[AcceleratorClass]) -> list[NodeView]:
    by_name = {
        node.name: node for device_class in classes for node in matching(device_class, nodes)
    }
    return list(by_name.values())
