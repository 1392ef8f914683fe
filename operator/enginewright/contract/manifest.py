"""The JSON beside an artefact: its truth. An artefact without a manifest does not exist."""

from typing import Final

from enginewright.contract.base import Message
from enginewright.contract.task import Recipe

MANIFEST_NAME: Final = "manifest.json"
MANIFEST_VERSION: Final = 1


class ArtifactFile(Message):
    """One file of an artefact, checked before anything reads it."""

    path: str  # relative, with /
    sha256: str
    size_bytes: int


class TensorSpec(Message):
    """An input or output as the model declares it."""

    name: str
    dtype: str  # numpy name: float32, int64, ... or "string"
    shape: tuple[int | str | None, ...]  # str: a named dimension; None: an unnamed one


class Manifest(Message):
    """A prepared model: `prepared/<key>/` in the store."""

    version: int = MANIFEST_VERSION
    key: str
    model_digest: str
    recipe: Recipe
    model: str = "model.onnx"
    files: tuple[ArtifactFile, ...]
    opset: int
    ir_version: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    golden_inputs: str = "golden/inputs.npz"  # one array an input, named "<sample>/<input>"
    golden_outputs: str = "golden/outputs.npz"  # likewise, from ONNX Runtime's CPU provider
    golden_source: str  # generated | samples
    versions: dict[str, str]  # onnx, onnxruntime, enginewright
