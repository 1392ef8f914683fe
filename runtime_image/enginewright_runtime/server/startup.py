"""Makes a model ready: loads it, warms it up on every shape it promises, proves its numbers.

All of it happens in the process that will serve, so that what was proven is what serves. A native
crash here therefore ends the server; `main` sees to it that the pod still says why.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort
import orjson
from enginewright.contract.manifest import MANIFEST_NAME, Manifest
from enginewright.contract.reasons import Reason
from enginewright.contract.task import Recipe, ServeTask
from numpy.typing import NDArray
from pydantic import ValidationError

import enginewright_runtime.limits
from enginewright_runtime import backends
from enginewright_runtime.backends.base import SessionError
from enginewright_runtime.backends.words import plain
from enginewright_runtime.digests import file_sha256
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.server.golden import GoldenError, Sample, difference, read_samples
from enginewright_runtime.server.runner import Runner
from enginewright_runtime.server.signature import (
    ProfileError,
    Signature,
    SignatureError,
    read_signature,
)

_log: Final = logging.getLogger(__name__)
_ELSEWHERE_SHOWN: Final = 100


@dataclass(frozen=True)
class ServedModel:
    """A model that has passed every proof."""

    signature: Signature
    runner: Runner
    execution: bytes  # JSON, for GET .../execution
    slowest_run: float  # seconds, during warm-up
    summary: str  # one line for the log


def prepare(task: ServeTask, artifact: Path, progress: Callable[[str], None]) -> ServedModel:
    """Load, warm up and prove the model of `artifact`.

    Args:
        task: which model on which backend.
        artifact: the folder with manifest, model and golden samples.
        progress: told what is being done, in words.

    Raises:
        StageFailure: it must not serve, and why.
    """
    began = time.monotonic()
    progress("reading the manifest")
    manifest = _read_manifest(task, artifact)
    threads = enginewright_runtime.limits.threads()
    progress(f"loading the model on backend {task.backend}")
    loaded = _load(task, artifact, manifest, threads)
    try:
        signature = read_signature(
            loaded.session.get_inputs(), loaded.session.get_outputs(), manifest.recipe.shapes
        )
        samples = read_samples(
            artifact / manifest.golden_inputs, artifact / manifest.golden_outputs, signature
        )
    except SignatureError as error:
        raise StageFailure(Reason.INVALID_MODEL, f"model {task.model!r}: {error}") from error
    except ProfileError as error:
        raise StageFailure(Reason.SHAPE_PROFILE_INVALID, str(error)) from error
    except (GoldenError, OSError, ValueError) as error:
        raise StageFailure(
            Reason.ARTIFACT_CORRUPT, f"the golden samples of the artefact are unusable: {error}"
        ) from error
    loaded_after = time.monotonic() - began
    runner = Runner(loaded.session, signature)
    slowest = _prove(runner, signature, samples, manifest.recipe, progress)
    seconds = time.monotonic() - began
    placement = loaded.placement
    backend = backends.base.find(task.backend)
    execution = {
        "model": task.model,
        "revision": task.revision,
        "backend": task.backend,
        "provider": placement.provider,
        "placement": {
            "nodes": dict(placement.nodes),
            "total": placement.total,
            "share": placement.share,
            "elsewhere": placement.elsewhere[:_ELSEWHERE_SHOWN],
            "elsewhere_count": len(placement.elsewhere),
        },
        "threads": threads,
        "versions": {"onnxruntime": str(ort.__version__), task.backend: backend.version()},
        "outputs_left_out": signature.left_out,
        "proofs": {
            "golden_samples": len(samples),
            "slowest_run_seconds": round(slowest, 6),
            "load_seconds": round(loaded_after, 3),
            "ready_seconds": round(seconds, 3),
        },
        "manifest": manifest.model_dump(mode="json"),
    }
    on_provider = placement.nodes.get(placement.provider, 0)
    summary = (
        f"{on_provider} of {placement.total} nodes on {placement.provider}, {threads} threads,"
        f" golden samples agree: {len(samples)}, loaded in {loaded_after:.1f} s, ready in {seconds:.1f} s"
    )
    return ServedModel(signature, runner, orjson.dumps(execution), slowest, summary)


def _read_manifest(task: ServeTask, artifact: Path) -> Manifest:
    path = artifact / MANIFEST_NAME
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise StageFailure(
            Reason.ARTIFACT_MISSING, f"there is no {path}: nothing was fetched"
        ) from None
    except (OSError, ValidationError) as error:
        raise StageFailure(Reason.ARTIFACT_CORRUPT, f"cannot read {path}: {error}") from error
    if manifest.key != task.prepared_key:
        raise StageFailure(
            Reason.ARTIFACT_CORRUPT,
            f"the artefact has key {manifest.key[:12]}, the task asks for {task.prepared_key[:12]}",
        )
    return manifest


def _load(
    task: ServeTask, artifact: Path, manifest: Manifest, threads: int
) -> backends.LoadedModel:
    try:
        return backends.create(task.backend, artifact / manifest.model, threads=threads)
    except SessionError as error:
        if damaged := _damaged_file(artifact, manifest):
            raise StageFailure(
                Reason.ARTIFACT_CORRUPT, f"{damaged} is not the file that its manifest lists"
            ) from error
        reason = Reason.INVALID_MODEL if task.backend == "cpu" else Reason.UNSUPPORTED_OPERATOR
        raise StageFailure(
            reason, f"backend {task.backend} refuses the model: {plain(str(error))}"
        ) from error


def _damaged_file(artifact: Path, manifest: Manifest) -> str | None:
    """Return the first file that differs from the manifest; asked only when loading has failed."""
    for file in manifest.files:
        try:
            digest = file_sha256(artifact / file.path).sha256
        except OSError:
            return file.path
        if digest != file.sha256:
            return file.path
    return None


def _prove(
    runner: Runner,
    signature: Signature,
    samples: list[Sample],
    recipe: Recipe,
    progress: Callable[[str], None],
) -> float:
    """Run every golden sample and every profile point; return the slowest run in seconds."""
    slowest = 0.0
    outputs = list(signature.outputs)
    for number, sample in enumerate(samples, 1):
        progress(f"proving golden sample {number} of {len(samples)}")
        arrays, seconds = _timed(runner, outputs, sample.feeds, f"golden sample {sample.name!r}")
        slowest = max(slowest, seconds)
        _compare(runner, signature, sample, dict(zip(outputs, arrays, strict=True)), recipe)
    for label, feeds in _profile_points(samples, recipe):
        progress(f"warming up {label}")
        slowest = max(slowest, _timed(runner, outputs, feeds, label)[1])
    progress("warming up once more")
    for sample in samples[:1]:  # the first run of a process pays for more than the model
        _timed(runner, outputs, sample.feeds, f"golden sample {sample.name!r}")
    return slowest


def _timed(
    runner: Runner, outputs: list[str], feeds: dict[str, NDArray[Any]], label: str
) -> tuple[list[NDArray[Any]], float]:
    began = time.monotonic()
    try:
        arrays = runner.run(outputs, feeds)
    except Exception as error:
        # exceptions of ONNX Runtime share no base class but Exception
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        raise StageFailure(
            Reason.PARITY_FAILED, f"the backend fails on {label} ({shapes}): {plain(str(error))}"
        ) from error
    return arrays, time.monotonic() - began


def _compare(
    runner: Runner,
    signature: Signature,
    sample: Sample,
    actual: dict[str, NDArray[Any]],
    recipe: Recipe,
) -> None:
    for name, expected in sample.expected.items():
        datatype = signature.outputs[name].datatype
        wrong = difference(expected, actual[name], datatype, rtol=recipe.rtol, atol=recipe.atol)
        if wrong is None:
            continue
        again = runner.run([name], sample.feeds)[0]
        if difference(actual[name], again, datatype) is not None:
            _log.warning("output %r gives other values on every run: not compared", name)
            continue
        raise StageFailure(
            Reason.PARITY_FAILED,
            f"output {name!r} of golden sample {sample.name!r} {wrong} against ONNX Runtime's CPU"
            " provider",
        )


def _profile_points(
    samples: list[Sample], recipe: Recipe
) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    """Yield inputs for the corners of the shape profiles that no golden sample has.

    Their values are those of the first sample, repeated, so that indices stay valid.
    """
    if not recipe.shapes:
        return
    known = {_shapes(sample.feeds) for sample in samples}
    for corner in ("min", "opt", "max"):
        feeds = dict(samples[0].feeds)
        for profile in recipe.shapes:
            shape: tuple[int, ...] = getattr(profile, corner)
            feeds[profile.input] = np.resize(feeds[profile.input], shape)
        if _shapes(feeds) not in known:
            known.add(_shapes(feeds))
            yield f"the {corner} shapes", feeds


def _shapes(feeds: dict[str, NDArray[Any]]) -> frozenset[tuple[str, tuple[int, ...]]]:
    return frozenset((name, array.shape) for name, array in feeds.items())
