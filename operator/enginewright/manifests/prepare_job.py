"""The Job that prepares a model: stages as init containers of one pod, sharing one folder.

`kubectl get pods` then shows the progress (Init:2/3), Kubernetes itself names the stage that
failed, and no stage needs a service account.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from enginewright_contract.schemes import SCHEMES
from enginewright_contract.task import (
    PREPARE_STAGES,
    REFUSED_NETWORKS_VARIABLE,
    WORK_PATH,
    PrepareTask,
)

from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.pods import DEFAULT_JOB_TEMPLATE, JobTemplate
from enginewright.manifests.artifact_images import ImageRepository, pushing_seconds
from enginewright.manifests.job_limits import PREPARATION_RESOURCES
from enginewright.manifests.jobs import stages_job
from enginewright.manifests.labels import PREPARATION_RECORD, SHARED_PREPARATION, of_model
from enginewright.manifests.owner import make_owned_metadata
from enginewright.manifests.pods import container
from enginewright.manifests.store_access import StoreAccess

# Azure's webhook gives its identity to pods with its label. The owner's other labels are not added to
# Jobs, so that no Service selects their pods.
_IDENTITY_LABELS: Final = tuple(  # the domains of labels that give a pod an identity
    f"{label.partition('/')[0]}/" for scheme in SCHEMES for label in scheme.identity_labels
)
# they publish the prepared model, or find it in the store
_WITH_IMAGE: Final = (PREPARE_STAGES[0], PREPARE_STAGES[-1])


@dataclass(frozen=True)
class Input:
    """A claim or a Secret that stage `fetch` reads from, and its mount path."""

    name: str  # of the volume
    path: str
    claim: str | None = None
    secret: str | None = None


@dataclass(frozen=True)
class PrepareJob:
    """What decides a prepare Job besides the model."""

    name: str
    image: str
    pull_policy: str
    pull_secrets: tuple[str, ...]
    store: StoreAccess
    task: PrepareTask
    deadline_seconds: int
    resources: dict[str, Any]
    inputs: tuple[Input, ...] = ()
    nodes: Mapping[str, Any] = field(default_factory=dict)  # placement fields of the pod's spec
    template: JobTemplate = DEFAULT_JOB_TEMPLATE
    assigned_ids: bool = False
    architecture: str = ""  # of the nodes, unless other fields decide it
    shared_hash: str = ""  # of all that models which share the result have in common
    record_hash: str = ""  # by which the result is found again; empty: it is not
    images: ImageRepository | None = None  # for OCI images of prepared models
    account: str | None = None  # service account whose identity `fetch` may use for object stores
    refused_networks: tuple[str, ...] = ()  # that sources may not be in


def prepare_job(model: InferenceModel, spec: PrepareJob) -> dict[str, Any]:
    """Return the Job."""
    labels = of_model(model.metadata.name, "prepare")
    images = spec.images
    common = [{"name": "work", "mountPath": WORK_PATH}, *spec.store.mounts()]
    fetch_only = [
        {"name": input_.name, "mountPath": input_.path, "readOnly": True} for input_ in spec.inputs
    ]
    pushing = images.mounts() if images else []
    address = images.env() if images else ()
    networks = ",".join(spec.refused_networks)
    refused = ({"name": REFUSED_NETWORKS_VARIABLE, "value": networks},) if networks else ()
    anonymous = True if spec.store.lends_account(spec.account) else None
    task = spec.task.model_copy(update={"anonymous_sources": anonymous}).to_json()
    stages = [
        container(
            stage,
            spec.image,
            ("enginewright-runtime", "stage", stage),
            pull_policy=spec.pull_policy,
            task=task,
            mounts=[
                *common,
                *(fetch_only if stage == "fetch" else ()),
                *(pushing if stage in _WITH_IMAGE else ()),
            ],
            resources=spec.resources or PREPARATION_RESOURCES,
            env=(
                *spec.store.env(),
                *(refused if stage == "fetch" else ()),
                *(address if stage in _WITH_IMAGE else ()),
            ),
        )
        for stage in PREPARE_STAGES
    ]
    job = stages_job(
        make_owned_metadata(model, spec.name, labels),
        stages,
        store=spec.store,
        volumes=map(_volume, spec.inputs),
        images=images,
        account=spec.account,
        identity=identity_labels(model.spec),
        secrets=spec.pull_secrets,
        template=spec.template,
        assigned_ids=spec.assigned_ids,
        architecture=spec.architecture,
        pod={
            "activeDeadlineSeconds": spec.deadline_seconds + pushing_seconds(images),
            **spec.nodes,
            **({"automountServiceAccountToken": True} if spec.account else {}),
        },
    )
    hashes = {SHARED_PREPARATION: spec.shared_hash, PREPARATION_RECORD: spec.record_hash}
    if present := {name: hash_ for name, hash_ in hashes.items() if hash_}:
        job["metadata"]["annotations"] = {**(job["metadata"].get("annotations") or {}), **present}
    return job


def identity_labels(spec: InferenceModelSpec) -> dict[str, str]:
    """Return the labels of a model's pods that its Job's pod needs for its identity."""
    return {
        name: value
        for name, value in spec.pod_template.labels.items()
        if name.startswith(_IDENTITY_LABELS)
    }


def _volume(source: Input) -> dict[str, Any]:
    if source.claim is not None:
        claim = {"claimName": source.claim, "readOnly": True}
        return {"name": source.name, "persistentVolumeClaim": claim}
    # Optional, so that the stage reports a missing Secret instead of a pod that never starts.
    return {"name": source.name, "secret": {"secretName": source.secret, "optional": True}}
