"""The Jobs of an engine: one that looks for it in the store, and one that builds it.

The first runs on any node, so that no device is occupied if the engine already exists. Both belong to
the InferenceEngine, and to no model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from enginewright_contract.task import (
    ENGINE_STAGES,
    LOOKUP_STAGE,
    SIDECAR_PORT,
    WORK_PATH,
    EngineTask,
)

from enginewright.api.inference_engine import InferenceEngine
from enginewright.manifests.artifact_images import ImageRepository, pushing_seconds
from enginewright.manifests.device_claim import (
    claim_template,
    pod_claims,
    template_name,
    with_claim,
)
from enginewright.manifests.job_limits import ENGINE_RESOURCES, LOOKUP_SECONDS
from enginewright.manifests.jobs import stages_job
from enginewright.manifests.labels import of_engine
from enginewright.manifests.owner import make_owned_metadata
from enginewright.manifests.pods import container
from enginewright.manifests.store_access import StoreAccess

ENGINE_COMPONENT: Final = "engine"
LOOKUP_COMPONENT: Final = "engine-lookup"

_BUILD, _VERIFY, _BENCHMARK, _PUBLISH = ENGINE_STAGES
_ON_DEVICE: Final = (_BUILD, _VERIFY, _BENCHMARK)
_WITH_IMAGE: Final = (LOOKUP_STAGE, _PUBLISH)


@dataclass(frozen=True)
class EngineJob:
    """What decides a Job besides the InferenceEngine."""

    name: str
    task: EngineTask
    pull_policy: str
    store: StoreAccess
    assigned_ids: bool = False
    images: ImageRepository | None = None  # for OCI images of engines


def lookup_job(engine: InferenceEngine, job: EngineJob) -> dict[str, Any]:
    """Return the Job that looks for the engine in the store."""
    stages = [_stage(engine, job, LOOKUP_STAGE, ENGINE_RESOURCES)]
    pod = {"activeDeadlineSeconds": LOOKUP_SECONDS + pushing_seconds(job.images)}
    return _job(engine, job, LOOKUP_COMPONENT, stages, pod)


def engine_job(engine: InferenceEngine, job: EngineJob) -> dict[str, Any]:
    """Return the Job that builds the engine, with one device of the class if it needs one."""
    build = engine.spec.build
    resources = build.resources.manifest() or ENGINE_RESOURCES
    on_device = resources
    if build.device:
        on_device = with_claim(resources)
    elif build.resource_name:
        limits = {**resources.get("limits", {}), build.resource_name: "1"}
        on_device = {**resources, "limits": limits}
    stages = [
        _stage(engine, job, stage, on_device if stage in _ON_DEVICE else resources)
        for stage in ENGINE_STAGES
    ]
    # The operator polls the build's progress here; the endpoint needs no authorization.
    stages[0]["ports"] = [{"name": "progress", "containerPort": SIDECAR_PORT, "protocol": "TCP"}]
    seconds = build.timeout_seconds + pushing_seconds(job.images)
    pod: dict[str, Any] = {"activeDeadlineSeconds": seconds}
    if build.node_selector:
        pod["nodeSelector"] = dict(build.node_selector)
    if build.tolerations:
        pod["tolerations"] = [toleration.manifest() for toleration in build.tolerations]
    if build.device:
        named = template_name(engine.kind, engine.metadata.name, build.device.manifest())
        pod["resourceClaims"] = pod_claims(named)
    if build.runtime_class_name:
        pod["runtimeClassName"] = build.runtime_class_name
    return _job(engine, job, ENGINE_COMPONENT, stages, pod)


def engine_claim_templates(engine: InferenceEngine) -> Iterator[dict[str, Any]]:
    """Yield what the Job that builds needs before it."""
    if request := engine.spec.build.device:
        labels = of_engine(engine.metadata.name, engine.spec.class_name, ENGINE_COMPONENT)
        yield claim_template(engine, labels, request.manifest())


def _job(
    engine: InferenceEngine,
    spec: EngineJob,
    component: str,
    stages: list[dict[str, Any]],
    pod: dict[str, Any],
) -> dict[str, Any]:
    """Return a Job with a deadline on its pod: the Job's own would include waiting for a device."""
    labels = of_engine(engine.metadata.name, engine.spec.class_name, component)
    return stages_job(
        make_owned_metadata(engine, spec.name, labels),
        stages,
        store=spec.store,
        images=spec.images,
        secrets=[secret.name for secret in engine.spec.build.image_pull_secrets],
        template=engine.spec.pod_template,
        assigned_ids=spec.assigned_ids,
        architecture=engine.spec.architecture,
        pod=pod,
    )


def _stage(
    engine: InferenceEngine, job: EngineJob, stage: str, resources: dict[str, Any]
) -> dict[str, Any]:
    images = job.images if stage in _WITH_IMAGE else None
    return container(
        stage,
        engine.spec.build.image,
        ("enginewright-runtime", "stage", stage),
        pull_policy=job.pull_policy,
        task=job.task.to_json(),
        mounts=[
            {"name": "work", "mountPath": WORK_PATH},
            *job.store.mounts(),
            *(images.mounts() if images else ()),
        ],
        resources=resources,
        env=(*job.store.env(), *(images.env() if images else ())),
    )
