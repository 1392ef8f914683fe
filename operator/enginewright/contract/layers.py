"""What became of a model's nodes in its engines: `layers.json` of an artefact, which `inspect` reads."""

from typing import Final

from enginewright.contract.base import Message

LAYERS_NAME: Final = "layers.json"
LARGEST_LAYERS: Final = 16 << 20  # bytes


class EngineLayer(Message):
    """One layer of the network that the parser made."""

    name: str
    type: str
    precision: str  # of its outputs, as the library names them: FLOAT/HALF
    nodes: tuple[str, ...] = ()  # names of the ONNX nodes that it stands for, the first few


class EngineLayers(Message):
    """What one engine is made of."""

    engine: str  # name of its file
    total: int  # of layers
    layers: tuple[EngineLayer, ...] = ()  # as far as they fit
    kernels: tuple[str, ...] = ()  # (): built without a device


class ArtifactLayers(Message):
    """What all engines of an artefact are made of."""

    library: str  # title and version
    engines: tuple[EngineLayers, ...]
