"""Which layers of its engines a model's nodes became: `layers.json` of an artefact, which `inspect` reads."""

from typing import Final

from enginewright_contract.base import Message

LAYERS_NAME: Final = "layers.json"
LARGEST_LAYERS: Final = 16 << 20  # bytes


class EngineLayer(Message):
    """One layer of the network that the parser created."""

    name: str
    type: str
    precision: str  # of its outputs, as the library names them: FLOAT/HALF
    nodes: tuple[str, ...] = ()  # names of the first few ONNX nodes that it implements


class EngineLayers(Message):
    """Layers and kernels of one engine."""

    engine: str  # name of its file
    total: int  # of layers
    layers: tuple[EngineLayer, ...] = ()  # as many as fit into the file
    kernels: tuple[str, ...] = ()  # (): built without a device


class ArtifactLayers(Message):
    """Layers and kernels of all engines of an artefact."""

    library: str  # title and version
    engines: tuple[EngineLayers, ...]
