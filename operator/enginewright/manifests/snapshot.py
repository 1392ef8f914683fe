"""A revision whole: all that is needed to serve it again when the spec has moved on.

Kept in a ControllerRevision, so that a refused update leaves the old revision serving, scalable
and, if its pods are lost, rebuilt.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model import InferenceModel
from enginewright.contract.base import canonical_json
from enginewright.contract.keys import sha256_text
from enginewright.contract.task import Promise
from enginewright.manifests.labels import REVISION, of_model
from enginewright.manifests.names import revision_name
from enginewright.manifests.owner import owned_metadata

_REVISION_LENGTH = 10
# Fields of later versions. The data of a ControllerRevision can never be changed, so those of earlier
# versions must be written as they were: without.
_ADDED = ("golden_output_bytes", "sidecar_resources")


class ClassSnapshot(BaseModel):
    """One accelerator class as it was when the revision was made."""

    model_config = ConfigDict(frozen=True)

    name: str
    backend: str
    image: str
    engine_key: str | None = None  # None: the prepared model itself is served
    compute_capability: str | None = None
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Mapping[str, Any], ...] = ()
    resource_name: str | None = None


class Snapshot(BaseModel):
    """What is rolled out as one; replicas are no part of it."""

    model_config = ConfigDict(frozen=True)

    prepared_key: str
    model_digest: str
    classes: tuple[ClassSnapshot, ...]
    strategy: str
    max_queue: int
    promise: Promise = Promise()
    pod_template: Mapping[str, Any] = {}  # as in the spec, camelCase
    pull_policy: str
    pull_secrets: tuple[str, ...] = ()
    store_claim: str
    golden_output_bytes: int | None = None  # where the sidecar needs more memory than usual for it
    sidecar_resources: Mapping[str, Any] = {}  # as in the spec

    @property
    def revision(self) -> str:
        """Short hash: equal content gives the same revision, also when it comes back later.

        Defaults are left out, so that a field that a later version adds restarts no pods.
        """
        content = self.model_dump(mode="json", exclude_defaults=True)
        return sha256_text(canonical_json(content))[:_REVISION_LENGTH]

    def data(self) -> dict[str, Any]:
        """Return what a ControllerRevision keeps."""
        unset = {name for name in _ADDED if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=unset)

    @classmethod
    def read(cls, controller_revision: Mapping[str, Any]) -> Self:
        """Read a snapshot back from its ControllerRevision; ValueError when it is none."""
        return cls.model_validate(controller_revision.get("data") or {})


def class_snapshot(
    accelerator: AcceleratorClass, backend: str, image: str, engine_key: str | None
) -> ClassSnapshot:
    """Return what a revision remembers of a class."""
    spec = accelerator.spec
    tolerations = [
        one.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        for one in spec.tolerations
    ]
    return ClassSnapshot(
        name=accelerator.metadata.name,
        backend=backend,
        image=image,
        engine_key=engine_key,
        compute_capability=spec.compute_capability,
        node_selector=dict(spec.node_selector),
        tolerations=tuple(tolerations),
        resource_name=spec.resource_name,
    )


def controller_revision(model: InferenceModel, snapshot: Snapshot, number: int) -> dict[str, Any]:
    """Return the ControllerRevision that keeps `snapshot`; `number` orders revisions."""
    labels = {**of_model(model.metadata.name), REVISION: snapshot.revision}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": owned_metadata(
            model, revision_name(model.metadata.name, snapshot.revision), labels
        ),
        "revision": number,
        "data": snapshot.data(),
    }
