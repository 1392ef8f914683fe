"""Which backends may serve: the candidates in order and the promise for each, the interim one, and those that are readmitted.

The first candidate serves, or the model is rejected. Only policy Allow proceeds to the next one, and
the promise then names the preferred one, so that the fallback is reported. One that was rejected with its inputs is a
candidate again with them if nodes or its user say so: a node that joins may have what the others lacked, such as a driver;
a node that was repaired looks as before, so its user asks by an annotation.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from enginewright_contract.engines import LIBRARIES, why_not_optimized, why_unusable
from enginewright_contract.images import COMPILED_BACKENDS, DEVICE_BACKENDS, VARIANTS
from enginewright_contract.keys import sha256_text
from enginewright_contract.reasons import Fault, Repeats, reason_named
from enginewright_contract.task import Promise

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.inference_model_status import RejectedBackend
from enginewright.api.scalars import share, whole_second
from enginewright.manifests.labels import CLASS, COMPONENT, RETRY, REVISION, SERVE
from enginewright.observed.deployments import DeploymentView
from enginewright.observed.nodes import NodeView
from enginewright.plan.history.outcomes import served_before
from enginewright.plan.resolve.classes import matching
from enginewright.plan.types import Config, Facts, Obstacle

_LONGEST: Final = 64  # characters; longer values of the annotation are hashed


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
        if all(backend in _runnable(facts.config, each) for each in classes)
    )
    return found or _not_runnable(facts.config, classes, first)


def ranking(spec: InferenceModelSpec, accelerator: AcceleratorClass) -> list[str]:
    """Return the backends that may serve on a class, the preferred one first."""
    return [str(each) for each in spec.backends or accelerator.spec.backends]


def _runnable(config: Config, accelerator: AcceleratorClass) -> list[str]:
    capability = accelerator.spec.compute_capability
    return [
        str(each)
        for each in accelerator.spec.backends
        if VARIANTS[each] in config.images and why_unusable(each, capability) is None
    ]


def _not_runnable(config: Config, classes: Sequence[AcceleratorClass], backend: str) -> Obstacle:
    rejecting = next(each for each in classes if backend not in _runnable(config, each))
    runnable = ", ".join(_runnable(config, rejecting))
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


def is_readmitted(
    facts: Facts, classes: Sequence[AcceleratorClass], rejected: RejectedBackend
) -> bool:
    """Return whether a rejected backend is tried again although it would be with the same inputs."""
    if rejected.rejected_at is None:  # by an earlier release: from now on it is known
        return False
    asked = _asked(facts.model)
    if asked and asked != rejected.retry:
        return True
    reason = reason_named(rejected.reason)
    return (
        reason is not None
        and reason.facets.repeats is not Repeats.EVERYWHERE
        and reason.facets.fault is not Fault.REVISION
        and bool(rejected.revision)
        and _serves_meanwhile(facts.model.spec, facts.deployments)
        and any(each > rejected.rejected_at for each in _joined(facts.nodes, classes))
    )


def rejection_recorded(
    facts: Facts, classes: Sequence[AcceleratorClass], rejected: RejectedBackend
) -> RejectedBackend:
    """Return the rejection with what must differ for it to end: the annotation, or the newest node."""
    # nodes have the API server's clock: one that is ahead of ours joins but once
    since = max((whole_second(facts.now), *_joined(facts.nodes, classes)))
    return rejected.model_copy(update={"rejected_at": since, "retry": _asked(facts.model)})


def _asked(model: InferenceModel) -> str:
    """Return the annotation's value; empty: there is none."""
    value = model.metadata.annotations.get(RETRY, "")
    return sha256_text(value) if len(value) > _LONGEST else value


def _serves_meanwhile(spec: InferenceModelSpec, deployments: Collection[DeploymentView]) -> bool:
    """Return whether pods serve that another attempt leaves alone: no node may stop what serves."""
    is_replaced = spec.rollout.strategy != "Surge"
    return not is_replaced and any(each.available for each in deployments)


def _joined(
    cluster_nodes: Collection[NodeView], classes: Sequence[AcceleratorClass]
) -> list[datetime]:
    """Return when the nodes of the classes joined."""
    nodes = (node for each in classes for node in matching(each, cluster_nodes))
    return [datetime.fromisoformat(node.created) for node in nodes if node.created]
