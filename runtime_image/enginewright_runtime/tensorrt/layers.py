"""The layers of each engine and the nodes that they come from, in one bounded file of the artefact.

With a device, TensorRT's engine inspector adds the kernels of the built engine.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from enginewright_contract.layers import ArtifactLayers, EngineLayer, EngineLayers

_MAX_ENTRIES: Final = 4096  # layers, and kernels, of one artefact
_MAX_NAME: Final = 160  # characters of a name
_ORIGIN: Final = "[ONNX Layer: "
_MAX_NODES: Final = 8  # listed for one layer


def file_for(engine: Path) -> Path:
    """Return the file to which the layers of one engine are written during its build."""
    return engine.with_suffix(".layers")


def of_network(network: Any, engine: str) -> EngineLayers:  # noqa: ANN401 - NVIDIA's
    """Return the layers of a network that the file `engine` is built from, as far as they fit."""
    layers = []
    for index in range(min(network.num_layers, _MAX_ENTRIES)):
        layer = network.get_layer(index)
        kinds = {str(layer.get_output(at).dtype.name) for at in range(layer.num_outputs)}
        layers.append(
            EngineLayer(
                name=layer.name[:_MAX_NAME],
                type=layer.type.name,
                precision="/".join(sorted(kinds)),
                nodes=origins(layer.metadata),
            )
        )
    return EngineLayers(engine=engine, total=network.num_layers, layers=tuple(layers))


def element_types(network: Any) -> tuple[str, ...]:  # noqa: ANN401 - NVIDIA's
    """Return the names of the element types of all tensors of a network, as TensorRT names them."""
    kinds = {
        network.get_layer(index).get_output(at).dtype.name
        for index in range(network.num_layers)
        for at in range(network.get_layer(index).num_outputs)
    }
    return tuple(sorted(map(str, kinds)))


def origins(metadata: str) -> tuple[str, ...]:
    """Return the names of the ONNX nodes that a layer's metadata holds, "[ONNX Layer: NAME]" each."""
    parts = metadata.split(_ORIGIN)[1:]
    return tuple(part.rstrip("\x1e ").removesuffix("]")[:_MAX_NAME] for part in parts[:_MAX_NODES])


def kernels(inspected: str) -> list[str]:
    """Return the names of an engine's layers from its inspector's JSON."""
    try:
        layers = json.loads(inspected).get("Layers", [])
    except (ValueError, AttributeError):
        return []
    names = [layer if isinstance(layer, str) else layer.get("Name", "") for layer in layers]
    return [str(name)[:_MAX_NAME] for name in names[:_MAX_ENTRIES]]


def write(
    path: Path, library: str, engines: Sequence[Path], kernels_of: Mapping[str, Sequence[str]]
) -> None:
    """Write the layers of all engines of an artefact into one file, with known kernels by file name."""
    remaining = _MAX_ENTRIES
    listed = []
    for engine in engines:
        own = file_for(engine)
        entry = EngineLayers(engine=engine.name, total=0)
        if own.is_file():
            entry = EngineLayers.model_validate_json(own.read_bytes())
        own.unlink(missing_ok=True)
        layers = entry.layers[:remaining]
        remaining -= len(layers)
        names = tuple(kernels_of.get(engine.name, ()))[:remaining]
        remaining -= len(names)
        listed.append(entry.model_copy(update={"layers": layers, "kernels": names}))
    path.write_text(
        ArtifactLayers(library=library, engines=tuple(listed)).to_json(), encoding="utf-8"
    )
