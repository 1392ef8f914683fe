"""A complete revision: everything needed to serve it again after the spec has changed.

Stored in a ControllerRevision, so that after a rejected update the old revision keeps serving, can be
scaled and, if its pods are lost, recreated. The pod templates are stored as rendered: a later version
of the operator, or another setting of the chart, restarts none of its pods.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from enginewright_contract.images import DEVICE_BACKENDS
from enginewright_contract.keys import content, content_hash
from enginewright_contract.task import Promise
from pydantic import BaseModel, ConfigDict, Field

from enginewright.api.accelerator_class import AcceleratorClass, AcceleratorClassSpec
from enginewright.api.devices import DeviceRequest
from enginewright.api.inference_model import InferenceModel
from enginewright.api.inference_model_status import ModelSignature, Pin
from enginewright.api.pods import Toleration
from enginewright.manifests.artifact_images import ArtifactImage
from enginewright.manifests.labels import REVISION, of_model
from enginewright.manifests.names import revision_name
from enginewright.manifests.owner import make_owned_metadata
from enginewright.manifests.pod_options import PodOptions
from enginewright.manifests.store_access import StoreAccess, StoreBucket

_REVISION_LENGTH: Final = 10
_VERSION: Final = 1  # of the hash's meaning; another one rolls out every model again


class ClassSnapshot(BaseModel):
    """One accelerator class as it was when the revision was created."""

    model_config = ConfigDict(frozen=True)

    name: str
    backend: str
    image: str
    engine_key: str | None = None  # else the prepared model itself is served
    compute_capability: str | None = None
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, Any], ...] = ()
    resource_name: str | None = None
    interim: bool = False  # it serves until the first engine is built
    device: Mapping[str, Any] | None = None  # as in the class: requested instead of resource_name
    # OCI image that the pod template mounts, of the engine or of the prepared model that is served
    artifact_image: ArtifactImage | None = None

    @property
    def takes_device(self) -> bool:
        """Return whether each pod has an exclusive device."""
        return self.resource_name is not None or self.device is not None

    def restore(self, spec: AcceleratorClassSpec) -> AcceleratorClassSpec:
        """Return a class's `spec` as it was when the revision was created, as far as that is in the revision."""
        as_it_was: dict[str, Any] = {
            "compute_capability": self.compute_capability,
            "node_selector": dict(self.node_selector),
            "tolerations": tuple(map(Toleration.model_validate, self.tolerations)),
        }
        if self.takes_device:  # else its backend may need none of the class
            device = None if self.device is None else DeviceRequest.model_validate(self.device)
            as_it_was |= {"resource_name": self.resource_name, "device": device}
        return spec.model_copy(update=as_it_was)


class Snapshot(PodOptions):
    """What is rolled out together: everything whose change restarts pods, and nothing else."""

    prepared_key: str
    model_digest: str
    classes: Annotated[tuple[ClassSnapshot, ...], Field(min_length=1)]
    # server processes in each pod, which no spec requests: of revisions of earlier releases, in whose names it is
    processes: int = 1
    promise: Promise = Promise()
    store_claim: str  # "": a bucket
    store_bucket: StoreBucket | None = None  # instead of the claim
    # if the sidecar needs more than its default memory for it
    golden_output_bytes: int | None = None

    @property
    def store(self) -> StoreAccess:
        """Return the store that the pods read."""
        return StoreAccess(self.store_claim, self.store_bucket)

    def revision(self) -> str:
        """Return a short hash: equal content gives the same revision, also after other revisions.

        Defaults are left out, so that a field added by a later version restarts no pods. OCI images of
        artefacts are, too: they decide nothing that runs, since pods verify each file of them.
        """
        classes = (
            device_class.model_copy(update={"artifact_image": None})
            for device_class in self.classes
        )
        decisive = self.model_copy(update={"classes": tuple(classes)})
        return content_hash(_VERSION, content(decisive))[:_REVISION_LENGTH]


class KeptSource(BaseModel):
    """The content that the addresses were pinned to when the revision was created."""

    model_config = ConfigDict(frozen=True)

    pins: tuple[Pin, ...]
    refresh: str = ""


class Revision(BaseModel):
    """A snapshot, its name, and the pod templates rendered from it."""

    model_config = ConfigDict(frozen=True)

    name: str
    snapshot: Snapshot
    templates: Mapping[str, Mapping[str, Any]] = {}  # by class; empty: stored by an earlier version
    source: KeptSource | None = None  # unless stored by an earlier version
    signature: ModelSignature | None = None  # likewise, or not known

    def data(self) -> dict[str, Any]:
        """Return the data of the ControllerRevision."""
        described = {"source": self.source, "signature": self.signature}
        removed = {"processes"} if self.snapshot.processes == 1 else set()  # no new revision has it
        return {
            **self.snapshot.model_dump(mode="json", exclude=removed),
            "templates": dict(self.templates),
            **{name: item.model_dump(mode="json") for name, item in described.items() if item},
        }

    @classmethod
    def read(cls, controller_revision: Mapping[str, Any]) -> Self:
        """Read a revision from its ControllerRevision; ValueError if it is not one."""
        data = controller_revision.get("data")
        if not isinstance(data, Mapping):
            raise ValueError("its data is not an object")  # noqa: TRY004 - callers expect one error
        labels = controller_revision["metadata"].get("labels") or {}
        snapshot = Snapshot.model_validate(data)
        templates = data.get("templates")
        names = {device_class.name for device_class in snapshot.classes}
        complete = (
            isinstance(templates, Mapping)
            and templates.keys() == names
            and all(
                isinstance(template, Mapping) and template.get("spec")
                for template in templates.values()
            )
        )
        return cls(
            name=str(labels.get(REVISION) or ""),
            snapshot=snapshot,
            templates=templates if complete and templates else {},
            source=KeptSource.model_validate(data["source"]) if data.get("source") else None,
            signature=(
                ModelSignature.model_validate(data["signature"]) if data.get("signature") else None
            ),
        )


def class_snapshot(
    accelerator: AcceleratorClass,
    backend: str,
    image: str,
    engine_key: str | None,
    *,
    interim: bool = False,
    chosen: bool = False,
    artifact_image: ArtifactImage | None,
) -> ClassSnapshot:
    """Return the fields of a class that belong to a revision; an interim or `chosen` CPU backend takes no device."""
    spec = accelerator.spec
    tolerations = [one.manifest() for one in spec.tolerations]
    takes_device = backend in DEVICE_BACKENDS or not (interim or chosen)
    return ClassSnapshot(
        name=accelerator.metadata.name,
        backend=backend,
        image=image,
        engine_key=engine_key,
        compute_capability=spec.compute_capability,
        node_selector=dict(spec.node_selector),
        tolerations=tuple(tolerations),
        resource_name=spec.resource_name if takes_device else None,
        device=spec.device.manifest() if takes_device and spec.device else None,
        interim=interim,
        artifact_image=artifact_image,
    )


def controller_revision(model: InferenceModel, revision: Revision, number: int) -> dict[str, Any]:
    """Return the ControllerRevision that stores `revision`; `number` orders revisions."""
    labels = {**of_model(model.metadata.name), REVISION: revision.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": make_owned_metadata(
            model, revision_name(model.metadata.name, revision.name), labels
        ),
        "revision": number,
        "data": revision.data(),
    }
