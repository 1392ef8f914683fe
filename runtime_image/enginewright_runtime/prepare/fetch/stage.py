"""Fetches the model, its external data and all other inputs of preparation into the work folder."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from enginewright_contract.facts import FetchFacts
from enginewright_contract.manifest import MODEL_NAME, ArtifactFile
from enginewright_contract.reasons import Reason
from enginewright_contract.report import StageReport
from enginewright_contract.schemes import scheme_of
from enginewright_contract.task import Extension, PrepareTask

from enginewright_runtime.core.digests import Copied, model_digest
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.handoff import (
    CALIBRATION_FOLDER,
    MODEL_FOLDER,
    PROCESSING_FOLDER,
    SAMPLES_FILE,
    Fetched,
    KnownArtifact,
)
from enginewright_runtime.core.isolation import Call, Limits
from enginewright_runtime.core.logs import format_bytes, format_count
from enginewright_runtime.core.model_files import EXTERNAL, LARGEST_PROTOBUF, may_have
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.prepare.fetch.places import CALIBRATION, MODEL, SAMPLES, places
from enginewright_runtime.prepare.fetch.sniff import sniff
from enginewright_runtime.prepare.fetch.unchanged import find_unchanged, record_versions
from enginewright_runtime.prepare.in_store import find_passed
from enginewright_runtime.session.extensions import bundled
from enginewright_runtime.session.extensions.libraries import BUNDLED, EXTENSIONS_FOLDER
from enginewright_runtime.session.processing.chain import label
from enginewright_runtime.sources import open_source
from enginewright_runtime.sources.base import Missing, ModelSource
from enginewright_runtime.sources.fetching import (
    FetchedFile,
    empty_folder,
    fetch_all,
    fetch_one,
    fetch_sibling,
)
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.versions import RecordedSource
from enginewright_runtime.store import open_medium
from enginewright_runtime.store.clusters import record_use

_log: Final = logging.getLogger(__name__)
_READING_SECONDS: Final = 300.0
_GIB: Final = 1 << 30
_LARGEST_MODEL: Final = 512 * _GIB  # with external data, and with the archive that contains it
_LARGEST_SAMPLES: Final = 8 * _GIB
_LARGEST_CALIBRATION: Final = 128 * _GIB
_LARGEST_EXTENSION: Final = 4 * _GIB
_OpenPlace: TypeAlias = Callable[[str], RecordedSource]  # by name of a place


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Fetch what the task names; leaves `Fetched`, and `KnownArtifact` if the store has the prepared model."""
    if task.cluster is not None:
        record_use(open_medium(paths), task.cluster)
    KnownArtifact.remove(paths.work)
    if unchanged := find_unchanged(task, paths):
        published, version = unchanged
        KnownArtifact(published=published).write(paths.work)
        message = f"unchanged: {version}, not downloaded"
        return StageReport(stage="fetch", ok=True, message=message, published=published)
    facts: dict[str, Any] = {}
    by_name = places(task, paths)
    sources: dict[str, RecordedSource] = {}

    def open_place(name: str) -> RecordedSource:
        sources[name] = RecordedSource(by_name[name].open(), by_name[name].suffix)
        return sources[name]

    files, facts["source"] = _fetch_model(
        open_place(MODEL),
        paths.work / MODEL_FOLDER,
        task.source_sha256,
        "spec.source.sha256",
    )
    steps = {
        name: _step(name, open_place, task, paths, facts)
        for name in (task.recipe.processing.steps() if task.recipe.processing else ())
    }
    digests = {MODEL: model_digest(files)}
    _check_pin(task, MODEL, digests[MODEL], "spec.source.uri")
    if SAMPLES in by_name:
        digests[SAMPLES] = _samples(open_place, paths, facts)
        _check_pin(task, SAMPLES, digests[SAMPLES], "spec.parity.samples")
    if CALIBRATION in by_name:
        digests[CALIBRATION] = _calibration(open_place, paths, facts)
        _check_pin(task, CALIBRATION, digests[CALIBRATION], "spec.quantization.calibration")
    for name, digest in steps.items():
        digests[name] = digest
        _check_pin(task, name, digest, label(name))
    _extensions(task, paths, facts)
    fetched = Fetched(
        files=files,
        model_digest=digests[MODEL],
        samples=SAMPLES in by_name,
        calibration=digests.get(CALIBRATION),
        steps=steps,
    )
    fetched.write(paths.work)
    record_versions(task, paths, sources, digests)
    size = sum(file.size_bytes for file in files)
    more = f" and {format_count(len(files) - 1, 'external data file')}" if len(files) > 1 else ""
    message = f"fetched {MODEL_NAME}{more}, {format_bytes(size)}, sha256 {files[0].sha256[:12]}"
    data = {name: digest for name, digest in digests.items() if name != MODEL}
    prepared = find_passed(task, digests[MODEL], data, paths)
    if prepared:
        KnownArtifact(published=prepared).write(paths.work)
        message += f"; the store already had prepared model {prepared.key[:12]}"
    return StageReport(
        stage="fetch",
        ok=True,
        message=message,
        published=prepared,
        facts=FetchFacts(files=files, digest=digests[MODEL]).model_dump(mode="json") | facts,
    )


def _step(
    name: str, open_place: _OpenPlace, task: PrepareTask, paths: Paths, facts: dict[str, Any]
) -> str:
    place = label(name)
    with _about(f"step {place}", f"see {place}"):
        files, source_facts = _fetch_model(
            open_place(name),
            paths.work / PROCESSING_FOLDER / name,
            task.steps_sha256.get(name),
            f"{place}.sha256",
        )
    facts.setdefault("processing", {})[name] = source_facts
    return model_digest(files)


def _fetch_model(
    source: RecordedSource, folder: Path, sha256: str | None, digest_place: str
) -> tuple[tuple[ArtifactFile, ...], dict[str, Any]]:
    model = empty_folder(folder) / MODEL_NAME
    quota = DiskQuota(folder, "a model", _LARGEST_MODEL, {".onnx": LARGEST_PROTOBUF})
    with fetch_one(source, ".onnx", model, quota) as fetched:
        if unfit := sniff(model):
            raise StageFailure(
                Reason.INVALID_MODEL,
                f"the source is not a model: it is {unfit.kind}",
                remedy=unfit.remedy,
            )
        _check_digest(sha256, fetched, digest_place)
        pinned = _describe_source(source, fetched.archive or fetched.file)
        files = (_list_file(MODEL_NAME, fetched.file), *_external_data(fetched, model, quota))
        return files, pinned


def _check_digest(sha256: str | None, fetched: FetchedFile, place: str) -> None:
    expected = (sha256 or fetched.file.sha256).lower()
    copies = (fetched.file, fetched.archive)
    if expected not in {copied.sha256 for copied in copies if copied is not None}:
        archive = f" (and its archive {fetched.archive.sha256})" if fetched.archive else ""
        raise StageFailure(
            Reason.DIGEST_MISMATCH,
            f"the source has sha256 {fetched.file.sha256}{archive}, {place} is {expected}",
        )


def _check_pin(task: PrepareTask, name: str, digest: str, place: str) -> None:
    """Compare with the digest of the first fetch from this address."""
    expected = task.pinned.get(name, digest)
    if expected != digest:
        raise StageFailure(
            Reason.SOURCE_CHANGED,
            f"the content of {place} has changed since it was first fetched: sha256"
            f" {expected[:12]} then, {digest[:12]} now",
        )


def _external_data(fetched: FetchedFile, model: Path, quota: DiskQuota) -> list[ArtifactFile]:
    files = []
    for location in _find_locations(model):
        target = model.parent / location
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            copied = fetch_sibling(fetched, location, target, quota)
        except Missing as missing:
            raise StageFailure(
                Reason.EXTERNAL_DATA_MISSING,
                f"the model refers to the external data file {location!r}, and {missing}",
            ) from None
        files.append(_list_file(location, copied))
    return files


def _find_locations(model: Path) -> list[str]:
    if not may_have(model, EXTERNAL):
        return []
    # imports a parser, which most models do not need here
    from enginewright_runtime.prepare.fetch.locations import (  # noqa: PLC0415 - above
        external_locations,
    )

    limits = Limits.of_model(_READING_SECONDS)
    return Call(external_locations, "reading which files the model needs", limits).run(model)


def _samples(open_place: _OpenPlace, paths: Paths, facts: dict[str, Any]) -> str:
    target = paths.work / SAMPLES_FILE
    quota = DiskQuota(paths.work, "samples", _LARGEST_SAMPLES)
    with _about("samples", "see spec.parity.samples"):
        source = open_place(SAMPLES)
        with fetch_one(source, ".npz", target, quota) as fetched:
            facts["samples"] = _describe_source(source, fetched.file)
            return fetched.file.sha256


def _calibration(open_place: _OpenPlace, paths: Paths, facts: dict[str, Any]) -> str:
    folder = empty_folder(paths.work / CALIBRATION_FOLDER)
    quota = DiskQuota(folder, "calibration data", _LARGEST_CALIBRATION)
    with _about("calibration data", "see spec.quantization.calibration"):
        source = open_place(CALIBRATION)
        fetched = fetch_all(source, folder, quota)
        if len(fetched) == 1 and (unfit := sniff(folder / fetched[0][0], npz=True)):
            raise StageFailure(
                Reason.CALIBRATION_INVALID, f"the file at {source.shown} is {unfit.kind}"
            )
    files = tuple(_list_file(path, copied) for path, copied in fetched)
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
    folder = empty_folder(paths.work / EXTENSIONS_FOLDER)
    facts["extensions"] = [
        bundled.declare(folder)
        if extension.type == BUNDLED
        else _extension(extension, task, paths, folder)
        for extension in task.recipe.extensions
    ]


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
            anonymous=bool(task.anonymous_sources),
        )
        with fetch_one(source, ".so", target, quota) as fetched:
            if fetched.file.sha256 != expected:
                unfit = sniff(target)
                raise StageFailure(
                    Reason.DIGEST_MISMATCH,
                    f"{source.shown} has sha256 {fetched.file.sha256}, spec.extensions says"
                    f" {expected}{f'; it is {unfit.kind}' if unfit else ''}",
                    remedy="set the digest of the intended library, or restore that library",
                )
            return _describe_source(source, fetched.file)


_NOWHERE: Final = Path("/nonexistent")


def _same_place(uri: str, source: str) -> bool:
    """Tell whether the source's credentials may be sent to the host of another address."""
    scheme = scheme_of(uri)
    is_same_host = urlsplit(uri).netloc == urlsplit(source).netloc
    return (
        scheme is not None
        and scheme is scheme_of(source)
        and (scheme.is_provider_wide or is_same_host)
    )


@contextmanager
def _about(part: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except StageFailure as failure:
        raise StageFailure(failure.reason, f"{part}: {failure.cause}", remedy=remedy) from failure


def _describe_source(source: ModelSource, copied: Copied) -> dict[str, Any]:
    return {
        "source": source.shown,
        "pin": source.pin or copied.version,
        "sha256": copied.sha256,
        "size_bytes": copied.size_bytes,
    }


def _list_file(path: str, copied: Copied) -> ArtifactFile:
    return ArtifactFile(path=path, sha256=copied.sha256, size_bytes=copied.size_bytes)
