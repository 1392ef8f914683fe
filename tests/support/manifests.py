"""Manifests of artefacts, as small as the contract allows."""

from typing import Any, Final

from enginewright_contract.manifest import EngineInfo, Manifest
from enginewright_contract.task import EngineRecipe, Recipe

CPU_RECIPE: Final = Recipe(backend="cpu", ort_version="1.31.1", max_opset=26, max_ir_version=13)


def manifest(**fields: Any) -> Manifest:
    """Return the manifest of a prepared model, or with `engine` of an engine."""
    smallest: dict[str, Any] = {
        "key": "a" * 64,
        "model_digest": "d" * 64,
        "recipe": CPU_RECIPE,
        "files": (),
        "opset": 17,
        "ir_version": 9,
        "nodes": 1,
        "inputs": (),
        "outputs": (),
        "golden_source": "generated",
        "versions": {},
    }
    return Manifest(**{**smallest, **fields})


def engine_info(backend: str = "tensorrt", **fields: Any) -> EngineInfo:
    """Return the manifest's facts of an engine for class l4."""
    smallest: dict[str, Any] = {
        "recipe": EngineRecipe(
            backend=backend, backend_version="10.1", ort_version="1.31.1", accelerator_class="l4"
        ),
        "prepared_key": "a" * 64,
        "file": "engine",
        "sha256": "e" * 64,
        "size_bytes": 1,
        "compute_capabilities": ("8.9",),
        "partitions": (),
        "nodes_total": 4,
        "nodes_accelerated": 4,
        "build_seconds": 1.0,
    }
    return EngineInfo(**{**smallest, **fields})
