"""Brings the model, its external data and the samples into the work folder."""

import logging
from pathlib import Path
from typing import Final

from enginewright.contract.manifest import ArtifactFile
from enginewright.contract.reasons import Reason
from enginewright.contract.report import StageReport, name_nodes
from enginewright.contract.task import PrepareTask

from enginewright_runtime import graphs
from enginewright_runtime.digests import MODEL_NAME, Copied, model_digest
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.handoff import MODEL_FOLDER, SAMPLES_FILE, Fetched
from enginewright_runtime.logs import counted, in_words
from enginewright_runtime.paths import Paths
from enginewright_runtime.sources import Source, open_source
from enginewright_runtime.stages.sniff import sniff

_log: Final = logging.getLogger(__name__)
_LARGEST_PROTOBUF: Final = 2**31 - 1
_MOST_EXTERNAL_FILES: Final = 4096


def run(task: PrepareTask, paths: Paths) -> StageReport:
    """Fetch what the task names; leaves `Fetched`.

    Raises:
        StageFailure: SourceUnreachable, DigestMismatch, InvalidModel, ExternalDataMissing or
            ModelTooLarge.
    """
    folder = paths.work / MODEL_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / MODEL_NAME
    source = open_source(task.source_uri, paths.source, paths.credentials)
    copied = source.copy_to(model)
    _check_content(model)
    _check_digest(task, copied)
    files = (_listed(MODEL_NAME, copied), *_external_data(source, model))
    samples = task.recipe.samples_uri is not None and _fetch_samples(task.recipe.samples_uri, paths)
    fetched = Fetched(files=files, model_digest=model_digest(files), samples=samples)
    fetched.leave(paths.work)
    size = sum(file.size_bytes for file in files)
    more = f" and {counted(len(files) - 1, 'external data file')}" if len(files) > 1 else ""
    return StageReport(
        stage="fetch",
        ok=True,
        message=f"fetched {MODEL_NAME}{more}, {in_words(size)}, sha256 {copied.sha256[:12]}",
        facts={"files": [file.model_dump() for file in files], "digest": fetched.model_digest},
    )


def _check_content(model: Path) -> None:
    if words := sniff(model):
        raise StageFailure(
            Reason.INVALID_MODEL, f"what lies at the source is no model: it is {words}"
        )


def _check_digest(task: PrepareTask, copied: Copied) -> None:
    expected = (task.source_sha256 or copied.sha256).lower()
    if expected != copied.sha256:
        raise StageFailure(
            Reason.DIGEST_MISMATCH,
            f"the source has sha256 {copied.sha256}, spec.source.sha256 is {expected}",
        )


def _external_data(source: Source, model: Path) -> list[ArtifactFile]:
    files = []
    for location in external_locations(model):
        target = model.parent / location
        target.parent.mkdir(parents=True, exist_ok=True)
        files.append(_listed(location, source.copy_beside(location, target)))
    return files


def external_locations(model: Path) -> list[str]:
    """Return the files that the model names, in order.

    A model that cannot be parsed names none: `validate` says what is wrong with it.

    Raises:
        StageFailure: ExternalDataMissing, for a location outside the model's folder.
    """
    if model.stat().st_size > _LARGEST_PROTOBUF:
        return []
    try:
        proto = graphs.parse(model)
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


def _fetch_samples(uri: str, paths: Paths) -> bool:
    source = open_source(uri, paths.samples, paths.samples_credentials)
    try:
        source.copy_to(paths.work / SAMPLES_FILE)
    except StageFailure as failure:
        raise StageFailure(
            failure.reason, f"samples: {failure.message}", remedy="see spec.parity.samples"
        ) from failure
    return True


def _listed(path: str, copied: Copied) -> ArtifactFile:
    return ArtifactFile(path=path, sha256=copied.sha256, size_bytes=copied.size_bytes)
