"""Loads the artefact to serve: its session, signature and golden samples, and kernels of earlier starts."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from enginewright_contract.manifest import Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.signature import TensorText
from enginewright_contract.task import ServeTask
from enginewright_runtime.core.failure import SessionError, StageFailure
from enginewright_runtime.core.ort_messages import is_out_of_memory, plain
from enginewright_runtime.proof.parity.parts import Parts, read_parts
from enginewright_runtime.session import loading
from enginewright_runtime.session.driver import Device
from enginewright_runtime.session.runner import Runner
from enginewright_runtime.session.samples import GoldenError, GoldenSample, read_samples
from enginewright_runtime.session.signature import (
    ProfileError,
    Signature,
    SignatureError,
    read_signature,
)

from enginewright_serving.manifest import list_profiles
from enginewright_serving.server.observe.buckets import ComputeBuckets
from enginewright_serving.server.startup.artifact import find_damaged_file
from enginewright_serving.server.startup.proofs import StartupProver
from enginewright_serving.server.startup.runtime_cache import RuntimeCache

_log: Final = logging.getLogger(__name__)


def load_session(
    task: ServeTask,
    artifact: Path,
    manifest: Manifest,
    threads: int,
    device: Device,
    runtime_cache: Path | None,
) -> loading.LoadedModel:
    """Create a task's session (`loading.create`), with kernels in `runtime_cache`; raise StageFailure if that fails."""
    strict = task.promise.policy == "Forbid"
    try:
        loaded = loading.create(
            task.backend,
            artifact / manifest.model,
            threads=threads,
            strict=strict,
            device=device,
            level=manifest.graph_optimization,
            runtime_cache=runtime_cache,
        )
    except SessionError as error:
        if damaged := find_damaged_file(artifact, manifest):
            raise StageFailure(
                Reason.ARTIFACT_CORRUPT, f"{damaged} does not match its digest in the manifest"
            ) from error
        if is_out_of_memory(str(error)):
            raise _no_memory(task.backend, device, str(error)) from error
        reason = Reason.INVALID_MODEL if task.backend == "cpu" else Reason.UNSUPPORTED_OPERATOR
        raise StageFailure(
            reason, f"backend {task.backend} cannot load the model: {plain(str(error))}"
        ) from error
    if loaded.cause is not None:
        _log.warning(
            "fallback, which policy %s allows: %s runs no node of the model: %s: %s",
            task.promise.policy,
            loaded.placement.provider,
            loaded.cause.reason,
            loaded.cause.cause,
        )
    return loaded


def _no_memory(backend: str, device: Device, text: str) -> StageFailure:
    where, remedy = "memory", None
    if device.memory is not None:
        where = "the memory of the device"
        remedy = (
            "use a class whose devices have more memory, or end what else uses the device: serving pods need"
            " it whole unless it is shared on purpose"
        )
    cause = f"backend {backend} cannot load the model: {where} does not suffice: {plain(text)}"
    return StageFailure(Reason.OUT_OF_MEMORY, cause, remedy=remedy)


class Golden(NamedTuple):
    """The golden samples of an artefact."""

    samples: list[GoldenSample]
    parts: Parts | None  # what is expected of the parts of their outputs


def read_model(
    task: ServeTask, artifact: Path, manifest: Manifest, loaded: loading.LoadedModel
) -> tuple[Signature, Golden]:
    """Return the signature and the golden samples of a loaded artefact; raise StageFailure if they are unusable."""
    try:
        signature = read_signature(
            loaded.session.get_inputs(),
            loaded.session.get_outputs(),
            list_profiles(manifest),
            least=0 if loaded.placement.accepts_empty else 1,
        )
        samples = read_samples(
            artifact / manifest.golden_inputs, artifact / manifest.golden_outputs, signature
        )
        path = manifest.golden_parts
        parts = read_parts(artifact / path) if path else None
    except SignatureError as error:
        raise StageFailure(Reason.INVALID_MODEL, f"model {task.model!r}: {error}") from error
    except ProfileError as error:
        raise StageFailure(Reason.SHAPE_PROFILE_INVALID, str(error)) from error
    except (GoldenError, OSError, ValueError) as error:
        raise StageFailure(
            Reason.ARTIFACT_CORRUPT, f"the golden samples of the artefact are unusable: {error}"
        ) from error
    return _as_published(signature, manifest), Golden(samples, parts)


def _as_published(signature: Signature, manifest: Manifest) -> Signature:
    """Return it with the output sizes that all backends report; optimizations may infer more of them."""
    if manifest.signature is None:
        return signature
    texts = map(TensorText.read, manifest.signature.outputs)
    shapes = {text.name: tuple(map(int, text.shape)) for text in texts}
    outputs = {
        name: replace(tensor, shape=shapes.get(name, tensor.shape))
        for name, tensor in signature.outputs.items()
    }
    return replace(signature, outputs=outputs)


def open_cache(
    root: Path | None,
    task: ServeTask,
    artifact: Path,
    manifest: Manifest,
    load: Callable[[Path | None], loading.LoadedModel],
    device: Device,
    progress: Callable[[str], None],
) -> RuntimeCache | None:
    """Return the engine's cache, filled, if one can be kept."""
    engine = manifest.engine
    cache = RuntimeCache.open(root, engine.sha256, device) if root and engine else None
    if cache is None or cache.reused:
        return cache

    def run_all() -> None:
        loaded = load(cache.folder)
        signature, golden = read_model(task, artifact, manifest, loaded)
        prover = StartupProver(Runner(loaded.session, signature), signature, ComputeBuckets())
        prover.prove(golden.samples, manifest, progress, steps=True, parts=golden.parts)

    progress("compiling the engine's kernels")
    cache.fill(run_all)
    return cache
