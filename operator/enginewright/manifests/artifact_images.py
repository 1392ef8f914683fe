"""OCI images of artefacts: how Jobs reach their repository, and how serving pods mount one."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginewright_contract.oci_images import PUSH_SECONDS
from enginewright_contract.task import (
    ARTIFACT_IMAGE_PATH,
    IMAGES_CREDENTIALS_PATH,
    IMAGES_VARIABLE,
)
from pydantic import BaseModel, ConfigDict

_CREDENTIALS: Final = "images"  # name of the Secret's volume in Jobs
_VOLUME: Final = "enginewright-image"  # name of the image's volume in serving pods


class ArtifactImage(BaseModel):
    """The image that the pods of a class mount."""

    model_config = ConfigDict(frozen=True)

    reference: str  # REPOSITORY@DIGEST
    secret: str | None = None  # with which nodes pull it, unless by their own credentials

    def volumes(self) -> list[dict[str, Any]]:
        """Return the volumes of a pod."""
        image = {"reference": self.reference, "pullPolicy": "IfNotPresent"}
        return [{"name": _VOLUME, "image": image}]

    def mounts(self) -> list[dict[str, Any]]:
        """Return where the container that reads the image mounts it."""
        return [{"name": _VOLUME, "mountPath": ARTIFACT_IMAGE_PATH, "readOnly": True}]

    def remove_from(
        self, template: Mapping[str, Any], *, other_secrets: Collection[str]
    ) -> dict[str, Any]:
        """Return a pod template without the image, and its pull secret unless in `other_secrets`."""
        spec = template["spec"]
        unneeded = {self.secret} - set(other_secrets)
        return {
            **template,
            "spec": {
                **spec,
                "imagePullSecrets": [
                    item for item in spec["imagePullSecrets"] if item["name"] not in unneeded
                ],
                "initContainers": [
                    {**item, "volumeMounts": _without_volume(item["volumeMounts"])}
                    for item in spec["initContainers"]
                ],
                "volumes": _without_volume(spec["volumes"]),
            },
        }


def _without_volume(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [part for part in parts if part["name"] != _VOLUME]


@dataclass(frozen=True)
class ImageRepository:
    """The repository that Jobs push images to."""

    repository: str  # HOST/PATH
    secret: str | None = None  # in every namespace with a model

    def image(self, reference: str | None) -> ArtifactImage | None:
        """Return what pods mount of an artefact, or None if it has no image here."""
        if reference is None or reference.partition("@")[0] != self.repository:
            return None
        return ArtifactImage(reference=reference, secret=self.secret)

    def volumes(self) -> list[dict[str, Any]]:
        """Return the volumes of a Job; optional, so that the stage reports a missing Secret."""
        if self.secret is None:
            return []
        return [{"name": _CREDENTIALS, "secret": {"secretName": self.secret, "optional": True}}]

    def mounts(self) -> list[dict[str, Any]]:
        """Return where a stage that pushes mounts them."""
        return [
            {"name": volume["name"], "mountPath": IMAGES_CREDENTIALS_PATH, "readOnly": True}
            for volume in self.volumes()
        ]

    def env(self) -> Iterable[Mapping[str, Any]]:
        """Return the variables of a stage that pushes."""
        return ({"name": IMAGES_VARIABLE, "value": self.repository},)


def pushing_seconds(images: ImageRepository | None) -> int:
    """Return the seconds that a Job has for its pushes, besides those of its work."""
    return 2 * PUSH_SECONDS if images else 0  # what waits for store or registry ends a little later
