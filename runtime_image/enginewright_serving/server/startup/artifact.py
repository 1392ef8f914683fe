"""Checks of the artefact to serve, before anything loads it; each raises StageFailure."""

from dataclasses import dataclass
from pathlib import Path

from enginewright_contract.manifest import EngineInfo, Manifest
from enginewright_contract.processors import Processor, mismatch
from enginewright_contract.reasons import Reason
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.session.base import SessionBackend
from enginewright_runtime.session.driver import Device
from enginewright_runtime.tensorrt.header import check_engine


@dataclass(frozen=True)
class CheckedArtifact:
    """An artefact that has passed the checks before it is loaded, and the resources that it is loaded on."""

    task: ServeTask
    folder: Path
    manifest: Manifest
    backend: SessionBackend
    device: Device
    other_products: str | None  # how this processor differs from the verified one
    threads: int
    memory: int | None  # bytes that the process may use, if known


def check_kind(backend: SessionBackend, manifest: Manifest) -> None:
    """Refuse an engine on a backend that cannot run it, and a model on one that runs engines only."""
    engine = manifest.engine
    if backend.compiled and engine is None:
        what = "serves only engines, but the artefact is a prepared model"
    elif engine is not None and engine.recipe.backend != backend.name:
        what = f"cannot run this engine, which was built for backend {engine.recipe.backend}"
    else:
        return
    raise StageFailure(Reason.ENGINE_INCOMPATIBLE, f"backend {backend.name} {what}")


def check_engine_files(
    task: ServeTask, artifact: Path, manifest: Manifest, engine: EngineInfo, backend: SessionBackend
) -> None:
    """Refuse an engine that is damaged or cannot run here, before loading it, since an engine is code."""
    version = backend.version() if backend.complete() else None
    check_engine(artifact / engine.file, engine, task.compute_capability, version)
    if damaged := find_damaged_file(artifact, manifest, but=engine.file):
        raise StageFailure(
            Reason.ENGINE_CORRUPT, f"{damaged} does not match its digest in the engine's manifest"
        )


def check_device(engine: EngineInfo, device: Device) -> None:
    """Refuse an engine that was built for another device."""
    capability, runs_on = device.compute_capability, engine.compute_capabilities
    if capability is not None and capability not in runs_on:
        raise StageFailure(
            Reason.ENGINE_INCOMPATIBLE,
            f"the engine runs on compute capability {', '.join(runs_on) or 'unknown'}, but this"
            f" device has {capability}",
        )


def check_processor(manifest: Manifest, processor: Processor) -> str | None:
    """Return why INT8 products differ here from where the model was verified, if they do.

    Refuse a model that relies on exact products; of one whose source was quantized the golden samples decide.
    """
    different = mismatch(
        saturable=manifest.saturable, verified_on=manifest.processor, serving=processor
    )
    if different and manifest.recipe.int8_products == "exact":
        raise StageFailure(Reason.PROCESSOR_MISMATCH, different)
    return different


def find_damaged_file(artifact: Path, manifest: Manifest, but: str | None = None) -> str | None:
    """Return the first file, other than `but`, that differs from the manifest, if one does."""
    for file in manifest.files:
        if file.path == but:
            continue
        try:
            digest = file_sha256(artifact / file.path).sha256
        except OSError:
            return file.path
        if digest != file.sha256:
            return file.path
    return None
