"""Brings the model, its external data and all that preparing it needs into the work folder."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from enginewright.contract.facts import FetchFacts
from enginewright.contract.manifest import MODEL_NAME, ArtifactFile
from enginewright.contract.reasons import Reason
from enginewright.contract.report import StageReport, name_nodes
from enginewright.contract.task import Extension, PrepareTask

from enginewright_runtime.core.digests import Copied, model_digest
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import (
    CALIBRATION_FOLDER,
    MODEL_FOLDER,
    SAMPLES_FILE,
    Fetched,
)
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.limits import memory_of_child
from enginewright_runtime.core.logs import counted, format_bytes
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.graph.raw import graphs
from enginewright_runtime.prepare.fetch.sniff import sniff
from enginewright_runtime.session.extensions.libraries import EXTENSIONS_FOLDER
from enginewright_runtime.sources import open_source
from enginewright_runtime.sources.base import Missing
from enginewright_runtime.sources.fetching import (
    FetchedFile,
    emptied,
    fetch_all,
    fetch_one,
    fetch_sibling,
)
from enginewright_runtime.sources.quota import DiskQuota

_log: Final = logging.getLogger(__name__)
_MOST_EXTERNAL_FILES: Final = 4096
_READING_SECONDS: Final = 300.0
_GIB: Final = 1 << 30
_LARGEST_MODEL: Final = 512 * _GIB  # with external data, and with the archive that it comes in
_LARGEST_SAMPLES: Final = 8 * _GIB
_LARGEST_CALIBRATION: Final = 128 * _GIB
_LARGEST_EXTENSION: Final = 4 * _GIB


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Fetch what the task names; leaves `Fetched`.

    Raises:
        StageFailure: SourceUnreachable, DigestMismatch, SourceChanged, InvalidModel,
            ExternalDataMissing, CalibrationInvalid or ModelTooLarge.
    """
    facts: dict[str, Any] = {}
    files = _model(task, paths, facts)
    digest = model_digest(files)
    _check_pin(task, "model", digest, "spec.source.uri")
    samples = task.recipe.samples_uri is not None
    if task.recipe.samples_uri is not None:
        found = _samples(task.recipe.samples_uri, paths, facts)
        _check_pin(task, "samples", found, "spec.parity.samples")
    calibration = _calibration(task, paths, facts)
    if calibration is not None:
        _check_pin(task, "calibration", calibration, "spec.quantization.calibration")
    _extensions(task, paths, facts)
    fetched = Fetched(files=files, model_digest=digest, samples=samples, calibration=calibration)
    fetched.leave(paths.work)
    size = sum(file.size_bytes for file in files)
    more = f" and {counted(len(files) - 1, 'external data file')}" if len(files) > 1 else ""
    return StageReport(
        stage="fetch",
        ok=True,
        message=f"fetched {MODEL_NAME}{more}, {format_bytes(size)}, sha256 {files[0].sha256[:12]}",
        facts=FetchFacts(files=files, digest=digest).model_dump(mode="json") | facts,
    )


def _model(task: PrepareTask, paths: Paths, facts: dict[str, Any]) -> tuple[ArtifactFile, ...]:
    folder = emptied(paths.work / MODEL_FOLDER)
    model = folder / MODEL_NAME
    source = open_source(task.source_uri, paths.source, paths.credentials)
    quota = DiskQuota(folder, "a model", _LARGEST_MODEL, {".onnx": graphs.LARGEST_PROTOBUF})
    with fetch_one(source, ".onnx", model, quota) as brought:
        _check_content(model)
        _check_digest(task, brought)
        facts["source"] = _pinned(source.shown, source.pin, brought.archive or brought.file)
        return (_listed(MODEL_NAME, brought.file), *_external_data(brought, model, quota))


def _check_content(model: Path) -> None:
    if kind := sniff(model):
        raise StageFailure(
            Reason.INVALID_MODEL, f"what lies at the source is no model: it is {kind}"
        )


def _check_digest(task: PrepareTask, brought: FetchedFile) -> None:
    """Compare with the digest that the owner gave: of the .onnx file, or of the archive of it."""
    expected = (task.source_sha256 or brought.file.sha256).lower()
    found = {copied.sha256 for copied in (brought.file, brought.archive) if copied is not None}
    if expected not in found:
        packed = f" (and its archive {brought.archive.sha256})" if brought.archive else ""
        raise StageFailure(
            Reason.DIGEST_MISMATCH,
            f"the source has sha256 {brought.file.sha256}{packed}, spec.source.sha256 is {expected}",
        )


def _check_pin(task: PrepareTask, name: str, found: str, place: str) -> None:
    """Compare with what the address held when it was first fetched."""
    expected = task.pinned.get(name, found)
    if expected != found:
        raise StageFailure(
            Reason.SOURCE_CHANGED,
            f"{place} no longer holds what was fetched from it before, sha256 {expected[:12]}:"
            f" it holds {found[:12]}",
        )


def _external_data(brought: FetchedFile, model: Path, quota: DiskQuota) -> list[ArtifactFile]:
    files = []
    limits = Limits(seconds=_READING_SECONDS, memory_bytes=memory_of_child())
    reading = Call(external_locations, "reading which files the model needs", limits)
    for location in reading.run(model):
        target = model.parent / location
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            copied = fetch_sibling(brought, location, target, quota)
        except Missing as missing:
            raise StageFailure(
                Reason.EXTERNAL_DATA_MISSING,
                f"the model names the external data file {location!r}, and {missing}",
            ) from None
        files.append(_listed(location, copied))
    return files


def external_locations(path: Path) -> list[str]:
    """Return the files that the model names, in order. Called in a child process.

    Few bytes of a file may be many parsed ones, and its writer chose them. A model that cannot be parsed names none: `validate` says what is wrong with it.

    Raises:
        StageFailure: ExternalDataMissing, for a location outside the model's folder.
    """
    if path.stat().st_size > graphs.LARGEST_PROTOBUF:
        return []
    try:
        proto = graphs.parse(path)
    except graphs.UnparsableError:
        return []
    outside: list[str] = []
    locations: set[str] = set()
    for tensor in graphs.walk_tensors(proto):
        entries = graphs.external_entries(tensor)
        if entries is None:
            continue
        location = entries.get("location", "")
        if graphs.is_inside(location) and location != MODEL_NAME:
            locations.add(location)
        else:
            outside.append(f"{tensor.name} ({location!r})")
    if outside:
        raise StageFailure(
            Reason.EXTERNAL_DATA_MISSING,
            f"external data of {name_nodes(outside)} lies outside the model's folder",
        )
    if len(locations) > _MOST_EXTERNAL_FILES:
        raise StageFailure(
            Reason.INVALID_MODEL,
            f"the model names {len(locations)} external data files, more than {_MOST_EXTERNAL_FILES}",
            remedy="save all tensors to one file (onnx.save_model, all_tensors_to_one_file=True)",
        )
    return sorted(locations)


def _samples(uri: str, paths: Paths, facts: dict[str, Any]) -> str:
    """Bring the samples and return their digest."""
    target = paths.work / SAMPLES_FILE
    quota = DiskQuota(paths.work, "samples", _LARGEST_SAMPLES)
    with _about("samples", "see spec.parity.samples"):
        source = open_source(uri, paths.samples, paths.samples_credentials)
        with fetch_one(source, ".npz", target, quota) as brought:
            facts["samples"] = _pinned(source.shown, source.pin, brought.file)
            return brought.file.sha256


def _calibration(task: PrepareTask, paths: Paths, facts: dict[str, Any]) -> str | None:
    """Bring the calibration data and return its digest; None when there is none."""
    quantization = task.recipe.quantization
    if quantization is None or quantization.calibration is None:
        return None
    folder = emptied(paths.work / CALIBRATION_FOLDER)
    quota = DiskQuota(folder, "calibration data", _LARGEST_CALIBRATION)
    with _about("calibration data", "see spec.quantization.calibration"):
        uri = quantization.calibration.uri
        source = open_source(uri, paths.calibration, paths.calibration_credentials)
        brought = fetch_all(source, folder, quota)
        if len(brought) == 1 and (kind := sniff(folder / brought[0][0], npz=True)):
            raise StageFailure(Reason.CALIBRATION_INVALID, f"what lies at {source.shown} is {kind}")
    files = tuple(_listed(path, copied) for path, copied in brought)
    digest = model_digest(files)
    facts["calibration"] = {
        "source": source.shown,
        "pin": source.pin,
        "files": len(files),
        "size_bytes": sum(file.size_bytes for file in files),
        "digest": digest,
    }
    return digest


def _extensions(task: PrepareTask, paths: Paths, facts: dict[str, Any]) -> None:
    if not task.recipe.extensions:
        return
    folder = emptied(paths.work / EXTENSIONS_FOLDER)
    facts["extensions"] = [_extension(each, task, paths, folder) for each in task.recipe.extensions]


def _extension(
    extension: Extension, task: PrepareTask, paths: Paths, folder: Path
) -> dict[str, Any]:
    expected = extension.sha256.lower()
    target = folder / f"{expected}.so"
    quota = DiskQuota(folder, "an extension", _LARGEST_EXTENSION)
    with _about("extension", "see spec.extensions"):
        source = open_source(
            extension.uri,
            paths.extensions / urlsplit(extension.uri).netloc,
            paths.credentials if _same_place(extension.uri, task.source_uri) else _NOWHERE,
        )
        with fetch_one(source, ".so", target, quota) as brought:
            if brought.file.sha256 != expected:
                kind = sniff(target)
                raise StageFailure(
                    Reason.DIGEST_MISMATCH,
                    f"{source.shown} has sha256 {brought.file.sha256}, spec.extensions says"
                    f" {expected}{f'; it is {kind}' if kind else ''}",
                    remedy="set the digest of the library that you mean, or restore that library",
                )
            return _pinned(source.shown, source.pin, brought.file)


_NOWHERE: Final = Path("/nonexistent")


def _same_place(uri: str, source: str) -> bool:
    """Tell whether the source's credentials may be shown to the host of another address."""
    first, second = urlsplit(uri), urlsplit(source)
    # keys of buckets and of the hub are known by their provider, whatever the bucket
    whole = first.scheme in {"s3", "gs", "az", "hf"}
    return first.scheme == second.scheme and (whole or first.netloc == second.netloc)


@contextmanager
def _about(what: str, remedy: str) -> Iterator[None]:
    """Say of a failure what could not be fetched."""
    try:
        yield
    except StageFailure as failure:
        raise StageFailure(failure.reason, f"{what}: {failure.cause}", remedy=remedy) from failure


def _pinned(shown: str, pin: str | None, copied: Copied) -> dict[str, Any]:
    """Return what was fetched from where, so that it can be found again."""
    return {
        "source": shown,
        "pin": pin or copied.version,
        "sha256": copied.sha256,
        "size_bytes": copied.size_bytes,
    }


def _listed(path: str, copied: Copied) -> ArtifactFile:
    return ArtifactFile(path=path, sha256=copied.sha256, size_bytes=copied.size_bytes)
