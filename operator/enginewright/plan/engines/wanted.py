"""The engines that a model needs: created where they are missing, read where they exist.

An InferenceEngine belongs to no model and has its own controller; here it is only requested. Its
coverage is compared with the model's promise, so that a model whose nodes would fall back is rejected
before a pod starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginewright_contract.images import COMPILED_BACKENDS
from enginewright_contract.keys import content, content_hash, engine_key
from enginewright_contract.reasons import Reason
from enginewright_contract.report import render
from enginewright_contract.task import EngineRecipe, Promise

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.base import API_VERSION
from enginewright.api.conditions import StatusReason
from enginewright.api.inference_engine import (
    EngineBuild,
    EngineFacts,
    EngineRecipeSpec,
    InferenceEngine,
    InferenceEngineSpec,
)
from enginewright.api.inference_model_status import EngineReference, Prepared
from enginewright.api.scalars import quantity
from enginewright.manifests.engine import engine_name, inference_engine
from enginewright.manifests.labels import REQUESTED_BY
from enginewright.manifests.placement import merge_templates
from enginewright.plan import pods
from enginewright.plan.engines.coverage import EngineCoverage, promise_violation
from enginewright.plan.engines.device_yield import engine_reference, seconds_left, without_yield
from enginewright.plan.engines.status import LOOKING_UP, ready_condition
from enginewright.plan.history.outcomes import serving_keys
from enginewright.plan.resolve.backends import benchmark_backends
from enginewright.plan.resolve.classes import device, matching
from enginewright.plan.resolve.images import engine_architecture
from enginewright.plan.resolve.resolve import Target
from enginewright.plan.store import store_losses
from enginewright.plan.types import Facts, ObjectRef


@dataclass(frozen=True)
class EngineFailure:
    """Why the model cannot be served with its engines."""

    reason: str
    cause: str
    remedy: str
    lasting: bool
    placement: bool = False  # they are built, but the promise would be broken

    @property
    def sentence(self) -> str:
        """Return cause and remedy as one sentence, as in conditions."""
        return render(self.cause, self.remedy)


@dataclass(frozen=True)
class Engines:
    """The state of a target's engines."""

    needed: bool
    keys: Mapping[str, str]  # accelerator class -> key of its engine, if that is built
    unusable: frozenset[str] = frozenset()  # classes whose engines would break the promise
    references: tuple[EngineReference, ...] = ()
    complete: bool = False
    reason: str = StatusReason.BUILDING  # of EnginesReady, when not complete
    message: str = ""
    failure: EngineFailure | None = None
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    facts: tuple[EngineFacts, ...] = ()
    # seconds for which a class's pods yield their device to the build, by class
    yielding: Mapping[str, float] = field(default_factory=dict)


def request_engines(facts: Facts, target: Target, prepared: Prepared) -> Engines:
    """Return the state of the engines of `target`, and the InferenceEngines to apply."""
    if target.backend not in COMPILED_BACKENDS:
        return Engines(needed=False, keys={}, complete=True)
    serving = serving_keys(facts)
    namespace = facts.model.metadata.namespace
    keys: dict[str, str] = {}
    unusable: set[str] = set()
    apply: list[dict[str, Any]] = []
    delete: list[ObjectRef] = []
    references: list[EngineReference] = []
    built: list[EngineFacts] = []
    waiting: list[tuple[str, str]] = []  # reason, message
    yielding: dict[str, float] = {}
    failure: EngineFailure | None = None
    for device_class in target.classes:
        spec, class_name = _spec(facts, target, prepared, device_class), device_class.metadata.name
        name = engine_name(spec)
        existing = facts.engines.get(name)
        reference = engine_reference(facts, device_class, existing, name)
        rebuilt = spec.key in serving and (existing is None or existing.status.engine is None)
        references.append(reference.model_copy(update={"lost": rebuilt}))
        if existing is not None and (loss := _loss(facts, existing)):
            delete.append(ObjectRef(API_VERSION, InferenceEngine.kind, namespace, name))
            lost = f"the engine for {class_name} is built again: {loss}"
            waiting.append((StatusReason.BUILDING, lost))
            continue
        if existing is not None and existing.status.engine is not None:
            keys[class_name] = spec.key
            built.append(existing.status.engine)
            if broken := _judge(existing.status.engine, target.promise, class_name):
                unusable.add(class_name)
                failure = failure or broken
            continue
        if existing is not None and _has_failed(existing) and not _is_untried(existing, spec.build):
            failure = failure or _describe_failure(existing, class_name)
        elif changed := _change_spec(facts, existing, spec):
            apply.append(inference_engine(namespace, changed, facts.model.metadata.name))
        reason, message = _progress(existing, class_name)
        if (left := seconds_left(facts.model, facts.now, references[-1])) is not None:
            yielding[class_name] = left
            message = (
                f"{message}; the pods of {class_name} yield the device (rollout.strategy: Recreate)"
            )
        waiting.append((reason, message))
    if failure:  # other engines cannot serve before this is fixed
        references, yielding = [without_yield(item) for item in references], {}
    return Engines(
        needed=True,
        keys=keys,
        unusable=frozenset(unusable),
        references=tuple(references),
        complete=not waiting and failure is None,
        reason=failure.reason if failure else waiting[0][0] if waiting else StatusReason.BUILT,
        message="; ".join(text for _, text in waiting),
        failure=failure,
        apply=tuple(apply),
        delete=tuple(delete),
        facts=tuple(built),
        yielding=yielding,
    )


def build_hash(build: EngineBuild) -> str:
    """Return the hash with which failures of this build are recorded."""
    return content_hash(content(build))


def is_ahead_of_time(target: Target, accelerator: AcceleratorClass) -> bool:
    """Return whether the engine of a class is built without a device."""
    return accelerator.spec.ahead_of_time and target.backend == "tensorrt-rtx"


def _spec(
    facts: Facts, target: Target, prepared: Prepared, accelerator: AcceleratorClass
) -> InferenceEngineSpec:
    image = facts.images[target.image]
    workspace = facts.model.spec.build.workspace
    ahead = is_ahead_of_time(target, accelerator)
    recipe = EngineRecipe(
        backend=target.backend,
        backend_version=image.backends[target.backend],
        ort_version=image.ort_version,
        cuda_major=image.cuda_major,
        accelerator_class=accelerator.metadata.name,
        device=device(accelerator, facts.config.product_labels),
        compute_capability=accelerator.spec.compute_capability,
        ahead_of_time=ahead,
        workspace_bytes=None if workspace is None else quantity(workspace),
        optimization_level=facts.model.spec.build.optimization_level,
    )
    # A build without a device could use any node, but nodes of the class are known to run such pods.
    selects = not ahead or bool(matching(accelerator, facts.nodes))
    template = facts.model.spec.pod_template
    compared = (
        () if ahead else benchmark_backends(facts, target.image, prepared.precision, accelerator)
    )
    return InferenceEngineSpec.model_validate(
        {
            "key": engine_key(prepared.key, recipe),
            "prepared_key": prepared.key,
            "class": accelerator.metadata.name,
            "backend": target.backend,
            "recipe": EngineRecipeSpec.model_validate(
                recipe.model_dump(exclude={"backend", "accelerator_class"})
            ),
            "pod_template": merge_templates(facts.config.jobs, facts.model.spec.build.pod_template),
            "architecture": engine_architecture(image, facts.nodes, accelerator),
            "build": EngineBuild.model_validate(
                {
                    "image": target.image,
                    "timeout_seconds": target.deadline_seconds,
                    "resources": facts.model.spec.build.resources,
                    "resource_name": None if ahead else accelerator.spec.resource_name,
                    "device": None if ahead else accelerator.spec.device,
                    "node_selector": dict(accelerator.spec.node_selector) if selects else {},
                    "tolerations": accelerator.spec.tolerations if selects else (),
                    "runtime_class_name": None if ahead else template.runtime_class_name,
                    "image_pull_secrets": tuple({"name": name} for name in target.pull_secrets),
                    "benchmark_backends": compared or None,
                }
            ),
        }
    )


def _change_spec(
    facts: Facts, existing: InferenceEngine | None, spec: InferenceEngineSpec
) -> InferenceEngineSpec | None:
    """Return the spec with which an engine that is not built is requested from now on, if it changes.

    A change of spec.build ends the current Job, so it waits until a running pod has finished.
    """
    if existing is None or _has_failed(existing):
        return spec
    own, name = facts.model.metadata.name, existing.metadata.name
    requester = existing.metadata.annotations.get(REQUESTED_BY, own)
    if requester != own and name not in facts.orphaned_engines:
        return None  # another model's spec decides how it is built
    build_pods = facts.engine_pods.get(name)
    begun = build_pods is None or any(map(pods.has_begun, build_pods))
    if begun or not _is_untried(existing, spec.build):
        spec = spec.model_copy(update={"build": existing.spec.build})
    is_same = (spec.build, spec.pod_template) == (existing.spec.build, existing.spec.pod_template)
    return None if is_same else spec


def _loss(facts: Facts, existing: InferenceEngine) -> str:
    """Return how the store lacked the engine for a serving pod after it was built, if it did."""
    ready = ready_condition(existing.status)
    if existing.status.engine is None or ready is None or ready.status != "True":
        return ""
    return store_losses.loss_found(
        facts,
        lambda _, on_class: on_class.engine_key == existing.spec.key,
        since=store_losses.rfc3339(ready.last_transition_time),
    )


def _is_untried(existing: InferenceEngine, build: EngineBuild) -> bool:
    """Return whether a build differs from the engine's, and has not failed permanently."""
    digest = build_hash(build)
    return digest != build_hash(existing.spec.build) and digest not in existing.status.failed_builds


def _has_failed(existing: InferenceEngine) -> bool:
    failure = existing.status.failure
    is_of_this_build = existing.status.build_hash == build_hash(existing.spec.build)
    return failure is not None and failure.lasting and is_of_this_build


def _describe_failure(existing: InferenceEngine, accelerator_class: str) -> EngineFailure:
    failure = existing.status.failure
    reason = failure.reason if failure else Reason.BUILD_FAILED
    why = failure.message if failure else ""
    return EngineFailure(
        reason,
        f"the engine for {accelerator_class} cannot be built: {why}",
        failure.remedy if failure else "",
        lasting=True,
    )


def _progress(existing: InferenceEngine | None, accelerator_class: str) -> tuple[str, str]:
    ready = ready_condition(existing.status) if existing else None
    if ready is None or ready.reason == StatusReason.NOT_REQUESTED:
        # what it says itself, once it is planned
        return StatusReason.LOOKING_UP, f"the engine for {accelerator_class}: {LOOKING_UP}"
    return ready.reason, f"the engine for {accelerator_class}: {ready.message}"


def _judge(engine: EngineFacts, promise: Promise, accelerator_class: str) -> EngineFailure | None:
    coverage = EngineCoverage(
        nodes_total=engine.nodes_total,
        nodes_accelerated=engine.nodes_accelerated,
        compute=engine.billionths_elsewhere,
        elsewhere=engine.elsewhere,
    )
    broken = promise_violation(coverage, promise, accelerator_class)
    if broken is None:
        return None
    reason, cause = broken
    return EngineFailure(reason, cause, reason.remedy, lasting=True, placement=True)
