"""The engines that a model needs: made where they are missing, read where they are there.

An InferenceEngine belongs to no model and has a controller of its own; here it is only asked for.
What the engine leaves outside is judged against the model's promise, so that a model whose nodes
would run elsewhere is refused before a pod of it starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final

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
from enginewright.contract.images import COMPILED_BACKENDS
from enginewright.contract.keys import content, content_hash, engine_key
from enginewright.contract.reasons import REMEDIES, Reason
from enginewright.contract.task import EngineRecipe, Promise
from enginewright.manifests.deployment import FETCH_ARTIFACT
from enginewright.manifests.engine import engine_name, inference_engine
from enginewright.manifests.labels import REQUESTED_BY, REVISION
from enginewright.manifests.placement import merged
from enginewright.plan import pods
from enginewright.plan.architecture import image_architecture
from enginewright.plan.classes import device, matching
from enginewright.plan.engine_status import ready_condition
from enginewright.plan.giving_way import reference, seconds_left
from enginewright.plan.outside import Outside, why_broken
from enginewright.plan.resolve import Target
from enginewright.plan.types import Facts, ObjectRef

_MILLION: Final = 1_000_000  # billionths in a thousandth
_GONE: Final = frozenset({Reason.ARTIFACT_MISSING, Reason.ARTIFACT_CORRUPT, Reason.ENGINE_CORRUPT})


@dataclass(frozen=True)
class EngineFailure:
    """Why the engines are not what the model needs."""

    reason: str
    message: str
    lasting: bool
    placement: bool = False  # they are built, but the promise about placement would be broken


@dataclass(frozen=True)
class Engines:
    """Where the engines of a target stand."""

    needed: bool
    keys: Mapping[str, str]  # accelerator class -> key of its engine, of those that are there
    references: tuple[EngineReference, ...] = ()
    complete: bool = False
    reason: str = StatusReason.BUILDING  # of EnginesReady, when not complete
    message: str = ""
    failure: EngineFailure | None = None
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectRef, ...] = ()
    facts: tuple[EngineFacts, ...] = ()
    # seconds for which a class's pods leave their device to the build, by class
    giving_way: Mapping[str, float] = field(default_factory=dict)


def wanted_engines(facts: Facts, target: Target, prepared: Prepared) -> Engines:
    """Return where the engines of `target` stand and which InferenceEngines are to be applied."""
    if target.backend not in COMPILED_BACKENDS:
        return Engines(needed=False, keys={}, complete=True)
    keys: dict[str, str] = {}
    apply: list[dict[str, Any]] = []
    delete: list[ObjectRef] = []
    references: list[EngineReference] = []
    found: list[EngineFacts] = []
    waiting: list[tuple[str, str]] = []  # reason, message
    giving_way: dict[str, float] = {}
    failure: EngineFailure | None = None
    for each in target.classes:
        spec = _spec(facts, target, prepared, each)
        name = engine_name(spec)
        there = facts.engines.get(name)
        references.append(reference(facts, each, there, name))
        if there is not None and _is_lost(facts, there):
            delete.append(
                ObjectRef(API_VERSION, InferenceEngine.kind, facts.model.metadata.namespace, name)
            )
            waiting.append((StatusReason.BUILDING, f"the engine for {spec.class_name} is lost"))
            continue
        if there is not None and there.status.engine is not None:
            keys[each.metadata.name] = spec.key
            found.append(there.status.engine)
            failure = failure or _judge(there.status.engine, target.promise, each.metadata.name)
            continue
        if there is None or _is_new_chance(there, spec.build):
            apply.append(_engine(facts, spec))
        elif _is_to_be_placed(facts, there, spec):
            # What else has changed of spec.build would make it another build.
            kept = spec.model_copy(update={"build": there.spec.build})
            apply.append(_engine(facts, kept))
        elif there.status.failure and there.status.failure.lasting:
            failure = failure or _failed(there, each.metadata.name)
        reason, message = _progress(there, each.metadata.name)
        if (left := seconds_left(facts, references[-1], there)) is not None:
            giving_way[each.metadata.name] = left
            message = f"{message}; the pods of {each.metadata.name} give way to it, as rollout.strategy Recreate allows"
        waiting.append((reason, message))
    return Engines(
        needed=True,
        keys=keys,
        references=tuple(references),
        complete=not waiting and failure is None,
        reason=failure.reason if failure else (waiting[0][0] if waiting else StatusReason.BUILT),
        message="; ".join(text for _, text in waiting),
        failure=failure,
        apply=tuple(apply),
        delete=tuple(delete),
        facts=tuple(found),
        giving_way=giving_way,
    )


def build_hash(build: EngineBuild) -> str:
    """Return the hash under which a failure of this build is remembered."""
    return content_hash(content(build))


def _spec(
    facts: Facts, target: Target, prepared: Prepared, accelerator: AcceleratorClass
) -> InferenceEngineSpec:
    held = facts.images[target.image]
    workspace = facts.model.spec.build.workspace
    ahead = accelerator.spec.ahead_of_time and target.backend == "tensorrt-rtx"
    recipe = EngineRecipe(
        backend=target.backend,
        backend_version=held.backends[target.backend],
        ort_version=held.ort_version,
        cuda_major=held.cuda_major,
        accelerator_class=accelerator.metadata.name,
        device=device(accelerator),
        compute_capability=accelerator.spec.compute_capability,
        ahead_of_time=ahead,
        workspace_bytes=None if workspace is None else quantity(workspace),
    )
    # Without a device any node could build, but one of the class is known to take such pods.
    selects = not ahead or bool(matching(accelerator, facts.nodes))
    template = facts.model.spec.pod_template
    return InferenceEngineSpec.model_validate(
        {
            "key": engine_key(prepared.key, recipe),
            "prepared_key": prepared.key,
            "class": accelerator.metadata.name,
            "backend": target.backend,
            "recipe": EngineRecipeSpec.model_validate(
                recipe.model_dump(exclude={"backend", "accelerator_class"})
            ),
            "pod_template": merged(facts.config.jobs, facts.model.spec.build.pod_template),
            "architecture": image_architecture(facts, target.image),
            "build": EngineBuild.model_validate(
                {
                    "image": target.image,
                    "timeout_seconds": target.deadline_seconds,
                    "resources": facts.model.spec.build.resources,
                    "resource_name": None if ahead else accelerator.spec.resource_name,
                    "node_selector": dict(accelerator.spec.node_selector) if selects else {},
                    "tolerations": accelerator.spec.tolerations if selects else (),
                    "runtime_class_name": None if ahead else template.runtime_class_name,
                    "image_pull_secrets": tuple({"name": name} for name in target.pull_secrets),
                }
            ),
        }
    )


def _engine(facts: Facts, spec: InferenceEngineSpec) -> dict[str, Any]:
    metadata = facts.model.metadata
    return inference_engine(metadata.namespace, spec, metadata.name)


def _is_to_be_placed(facts: Facts, there: InferenceEngine, spec: InferenceEngineSpec) -> bool:
    """Tell whether the model that asked for the engine wants its Jobs elsewhere now."""
    asked = there.metadata.annotations.get(REQUESTED_BY, facts.model.metadata.name)
    lasting = there.status.failure is not None and there.status.failure.lasting
    differs = there.spec.pod_template != spec.pod_template
    return differs and not lasting and asked == facts.model.metadata.name


def _is_lost(facts: Facts, there: InferenceEngine) -> bool:
    """Tell whether a pod that is to serve the engine found it gone since it was built."""
    ready = ready_condition(there.status)
    if there.status.engine is None or ready is None or ready.status != "True":
        return False
    serving = {
        each.revision
        for each in facts.revisions
        if each.kept and any(one.engine_key == there.spec.key for one in each.kept.snapshot.classes)
    }
    built = ready.last_transition_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    failures = (pods.failure(pod) for pod in facts.pods if pod.label(REVISION) in serving)
    return any(
        each is not None
        and each.stage == FETCH_ARTIFACT  # the server sees its own copy, not the store
        and each.reason in _GONE
        and each.finished_at > built
        for each in failures
    )


def _is_new_chance(there: InferenceEngine, build: EngineBuild) -> bool:
    """Tell whether building failed for good, and what is asked for now was not yet tried."""
    failure = there.status.failure
    if failure is None or not failure.lasting:
        return False
    digest = build_hash(build)
    return digest != build_hash(there.spec.build) and digest not in there.status.failed_builds


def _failed(there: InferenceEngine, accelerator_class: str) -> EngineFailure:
    failure = there.status.failure
    reason = failure.reason if failure else Reason.BUILD_FAILED
    message = failure.message if failure else ""
    return EngineFailure(
        reason, f"the engine for {accelerator_class} cannot be built: {message}", lasting=True
    )


def _progress(there: InferenceEngine | None, accelerator_class: str) -> tuple[str, str]:
    ready = ready_condition(there.status) if there else None
    if ready is None:
        return StatusReason.BUILDING, f"the engine for {accelerator_class} is next"
    return ready.reason, f"the engine for {accelerator_class}: {ready.message}"


def _judge(engine: EngineFacts, promise: Promise, accelerator_class: str) -> EngineFailure | None:
    """Return what the promise is broken by, in what the engine leaves outside."""
    compute = engine.compute_billionths_elsewhere
    if compute is None and engine.compute_permille_elsewhere is not None:
        compute = engine.compute_permille_elsewhere * _MILLION
    outside = Outside(
        nodes_total=engine.nodes_total,
        nodes_accelerated=engine.nodes_accelerated,
        compute=compute,
        elsewhere=engine.elsewhere,
    )
    broken = why_broken(outside, promise, accelerator_class)
    if broken is None:
        return None
    reason, message = broken
    return EngineFailure(reason, f"{message}; {REMEDIES[reason]}", lasting=True, placement=True)
