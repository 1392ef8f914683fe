"""Artefacts as OCI images, which nodes pull and pods mount to save time: pods also find artefacts in the store."""

from dataclasses import dataclass
from typing import TypeVar

from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.manifest import Manifest
from enginewright_contract.oci_images import PUSH_SECONDS
from enginewright_contract.report import Published, PublishedEngine

from enginewright_runtime.core.paths import Paths
from enginewright_runtime.store import Store

_Reported = TypeVar("_Reported", Published, PublishedEngine)


@dataclass(frozen=True)
class Pushed:
    """The image of an artefact, or why there is none."""

    reference: str | None = None  # REPOSITORY@DIGEST
    failure: str | None = None

    def annotate(self, artefact: _Reported) -> _Reported:
        """Return the report of an artefact with its image."""
        failure = self.failure and self.failure[:TEXT_LENGTH]
        return artefact.model_copy(update={"image": self.reference, "image_failure": failure})

    def describe(self, message: str) -> str:
        """Return the message of a stage with what became of the image."""
        if self.failure:
            return f"{message}; it has no OCI image: {self.failure}"
        return f"{message}; its OCI image is {self.reference}" if self.reference else message


def push(paths: Paths, store: Store, manifest: Manifest, seconds: float = PUSH_SECONDS) -> Pushed:
    """Push the image of an artefact for up to `seconds`, if the pod names a repository for images."""
    if paths.images is None:
        return Pushed()
    # imported on demand: it is slow to load, and rarely used
    from enginewright_runtime.oci.ensure import ensure_image  # noqa: PLC0415 - above

    return ensure_image(paths.images, paths.images_credentials, store, manifest, seconds)
