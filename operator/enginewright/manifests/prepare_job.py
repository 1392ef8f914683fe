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
    WORK_PATH,
    PrepareTask,
)

from enginewright.api.inference_model import InferenceModel, InferenceModelSpec
from enginewright.api.pods import DEFAULT_JOB_TEMPLATE, JobTemplate
from enginewright.manifests.artifact_images import ImageRepository, pushing_seconds
from enginewright.manifests.job_limits import PREPARATION_RESOURCES
from enginewright.manifests.jobs import stages_job
from enginewright.manifests.labels import PREPARATION_RECORD, SHARED_PREPARATION, of_model
from enginewright.manifests.owner import owned_metadata
from enginewright.manifests.pods import TMP_VOLUME, container
from enginewright.manifests.store_access import StoreAccess

# Azure's webhook gives its identity to pods with its label. The owner's other labels are not added to
# Jobs, so that no Service selects their pods.
_IDENTITY_LABELS: Final = tuple(  # the domains of labels that give a pod an identity
    f"{label.partition('/')[0]}/" for each in SCHEMES for label in each.identity_labels
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
    shared_hash: str = (
        ""  # of all that models have in common that share the result; empty: it is not shared
    )
    record_hash: str = ""  # by which the result is found again; empty: it is not
    images: ImageRepository | None = None  # for OCI images of prepared models; None: none are made
    account: str | None = None  # service account whose identity `fetch` may use for object stores


def prepare_job(model: InferenceModel, wanted: PrepareJob) -> dict[str, Any]:
    """Return the Job."""
    labels = of_model(model.metadata.name, "prepare")
    volumes: list[dict[str, Any]] = [
        TMP_VOLUME,
        {"name": "work", "emptyDir": {}},
        *wanted.store.volumes(),
    ]
    common = [
        {"name": "work", "mountPath": WORK_PATH},
        *wanted.store.mounts(),
    ]
    volumes += [_volume(each) for each in wanted.inputs]
    fetch_only = [
        {"name": each.name, "mountPath": each.path, "readOnly": True} for each in wanted.inputs
    ]
    images = wanted.images
    volumes += images.volumes() if images else []
    pushing = images.mounts() if images else []
    address = images.env() if images else ()
    anonymous = True if wanted.store.lends_account(wanted.account) else None
    task = wanted.task.model_copy(update={"anonymous_sources": anonymous}).to_json()
    stages = [
        container(
            stage,
            wanted.image,
            ("enginewright-runtime", "stage", stage),
            pull_policy=wanted.pull_policy,
            task=task,
            mounts=[
                *common,
                *(fetch_only if stage == "fetch" else ()),
                *(pushing if stage in _WITH_IMAGE else ()),
            ],
            resources=wanted.resources or PREPARATION_RESOURCES,
            env=(*wanted.store.env(), *(address if stage in _WITH_IMAGE else ())),
        )
        for stage in PREPARE_STAGES
    ]
    account = wanted.store.account(wanted.account)
    job = stages_job(
        owned_metadata(model, wanted.name, labels),
        stages,
        volumes,
        secrets=wanted.pull_secrets,
        template=wanted.template,
        assigned_ids=wanted.assigned_ids,
        architecture=wanted.architecture,
        pod={
            "activeDeadlineSeconds": wanted.deadline_seconds + pushing_seconds(images),
            **wanted.nodes,
            **({"serviceAccountName": account} if account else {}),
            **({"automountServiceAccountToken": True} if wanted.account else {}),
        },
    )
    metadata = job["spec"]["template"]["metadata"]
    identity = identity_labels(model.spec)
    metadata["labels"] = {**wanted.store.labels(), **identity, **metadata["labels"]}
    hashes = {
        SHARED_PREPARATION: wanted.shared_hash,
        PREPARATION_RECORD: wanted.record_hash,
    }
    if any(hashes.values()):
        annotations = job["metadata"].get("annotations") or {}
        known = {name: each for name, each in hashes.items() if each}
        job["metadata"]["annotations"] = {**annotations, **known}
    return job


def identity_labels(spec: InferenceModelSpec) -> dict[str, str]:
    """Return the labels of a model's pods that its Job's pod needs for its identity."""
    return {
        name: value
        for name, value in spec.pod_template.labels.items()
        if name.startswith(_IDENTITY_LABELS)
    }


def _volume(wanted: Input) -> dict[str, Any]:
    if wanted.claim is not None:
        claim = {"claimName": wanted.claim, "readOnly": True}
        return {"name": wanted.name, "persistentVolumeClaim": claim}
    # Optional, so that the stage reports a missing Secret instead of a pod that never starts.
    return {"name": wanted.name, "secret": {"secretName": wanted.secret, "optional": True}}
