"""The addresses whose content may change: of the model, its steps, samples and calibration data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from enginewright_contract.task import PrepareTask

from enginewright_runtime.core.paths import Paths
from enginewright_runtime.sources import open_source
from enginewright_runtime.sources.base import ModelSource

MODEL: Final = "model"
SAMPLES: Final = "samples"
CALIBRATION: Final = "calibration"


@dataclass(frozen=True)
class Place:
    """One address, and how it is read."""

    uri: str
    mount: Path  # of the claim in a pvc:// address
    credentials: Path  # folder of the Secret
    suffix: str  # of the only file that is fetched from a folder; empty for all files
    anonymous: bool  # whether to send no credentials, instead of the pod's, if there is no Secret

    def open(self) -> ModelSource:
        """Return the source."""
        return open_source(self.uri, self.mount, self.credentials, anonymous=self.anonymous)


def places(task: PrepareTask, paths: Paths) -> dict[str, Place]:
    """Return the addresses by name."""
    recipe, anonymous = task.recipe, bool(task.anonymous_sources)
    by_name = {MODEL: Place(task.source_uri, paths.source, paths.credentials, ".onnx", anonymous)}
    if recipe.samples_uri is not None:
        by_name[SAMPLES] = Place(
            recipe.samples_uri, paths.samples, paths.samples_credentials, ".npz", anonymous
        )
    if recipe.quantization is not None and recipe.quantization.calibration is not None:
        uri = recipe.quantization.calibration.uri
        by_name[CALIBRATION] = Place(
            uri, paths.calibration, paths.calibration_credentials, "", anonymous
        )
    for name, uri in (recipe.processing.steps() if recipe.processing else {}).items():
        mount = paths.processing / urlsplit(uri).netloc
        by_name[name] = Place(uri, mount, paths.processing_credentials / name, ".onnx", anonymous)
    return by_name
