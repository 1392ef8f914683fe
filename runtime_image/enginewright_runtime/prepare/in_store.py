"""Finds what the store already has of a model that is to be prepared, and reports it.

A later release may refuse what an earlier one prepared under the same key. So only artefacts that
this pipeline is credited with skip the stages, see `store.credit`. In a bucket that another cluster uses, what
that one's release has made in another way stays, and what this one makes has a key with its cluster in it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enginewright_contract.base import TEXT_LENGTH
from enginewright_contract.keys import compute_prepared_key, compute_prepared_keys
from enginewright_contract.manifest import Change, Manifest
from enginewright_contract.reasons import Fault, Reason
from enginewright_contract.report import Published
from enginewright_contract.task import PrepareTask

from enginewright_runtime import oci
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.paths import Paths
from enginewright_runtime.session.arrays import map_arrays
from enginewright_runtime.session.extensions.libraries import key_data
from enginewright_runtime.store import Store, credit, open_store

_log: Final = logging.getLogger(__name__)
_FOLDER: Final = "stored"  # golden samples, from the store
_CLUSTER: Final = "cluster"  # in what enters a key; no name of a sample, step or library


@dataclass(frozen=True)
class StorePlace:
    """Where a prepared model is stored."""

    key: str
    content: dict[str, str]  # that enters the key, beside the model and its recipe


def keys_of(task: PrepareTask, digest: str, data: Mapping[str, str]) -> tuple[str, ...]:
    """Return the key of what a task prepares, and the one that earlier versions gave it, if that differs.

    `digest` is of the model, `data` of samples, calibration data and steps, by name.
    """
    return compute_prepared_keys(digest, task.recipe, content_of(task, data))


def content_of(task: PrepareTask, data: Mapping[str, str]) -> dict[str, str]:
    """Return `data` with what extensions of the image add to it, as it enters the key."""
    return {**data, **key_data(task.recipe.extensions)}


def find_own_place(task: PrepareTask, digest: str, data: Mapping[str, str]) -> StorePlace | None:
    """Return where the task's cluster keeps what differs from another's, None if its store is no bucket; see `keys_of`."""
    if task.cluster is None:
        return None
    content = content_of(task, data) | {_CLUSTER: task.cluster}
    return StorePlace(compute_prepared_key(digest, task.recipe, content), content)


def _list_keys(task: PrepareTask, digest: str, data: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys under which the store may have the prepared model, the first to be tried at the end."""
    own = find_own_place(task, digest, data)
    return (*keys_of(task, digest, data), *([own.key] if own else []))


def find_intact(
    task: PrepareTask, digest: str, data: Mapping[str, str], paths: Paths
) -> Published | None:
    """Return what the store has of a prepared model, if it is whole; arguments as of `keys_of`."""
    return _find(open_store(paths), _list_keys(task, digest, data), data, paths, lambda _: True)


def _find(
    store: Store,
    keys: Sequence[str],
    data: Mapping[str, str],
    paths: Paths,
    counts: Callable[[Manifest], bool],
) -> Published | None:
    for key in reversed(keys):
        manifest = _find_readable(store, key)
        if manifest is None or not counts(manifest):
            continue  # without reading all of it
        manifest = store.find_intact(key)
        # an artefact of an earlier version lacks the signature, which needs the model
        if manifest is not None and manifest.signature is not None and counts(manifest):
            folder = paths.work / _FOLDER
            try:
                store.read_golden(key, folder)
            except StageFailure as failure:
                if failure.reason.facets.fault is not Fault.ARTIFACT:
                    raise
                _log.warning("%s", failure.message)
                return None
            report = report_prepared(manifest, folder / manifest.golden_outputs, data, cached=True)
            return oci.push(paths, store, manifest).annotate(report)
    return None


def _find_readable(store: Store, key: str) -> Manifest | None:
    """Return the manifest of an artefact that exists, unless it is damaged."""
    try:
        return store.find(key)
    except StageFailure as failure:
        if failure.reason is not Reason.ARTIFACT_CORRUPT:
            raise
        _log.warning("%s", failure.message)
        return None


def find_passed(
    task: PrepareTask, digest: str, data: Mapping[str, str], paths: Paths
) -> Published | None:
    """Return what the store has, if it is whole and this pipeline is credited with it."""
    pipeline = task.pipeline
    if pipeline is None:
        return None
    store = open_store(paths)
    return _find(
        store,
        _list_keys(task, digest, data),
        data,
        paths,
        lambda manifest: credit.is_credited(store, manifest, pipeline),
    )


def report_prepared(
    manifest: Manifest, outputs: Path, data: Mapping[str, str], *, cached: bool
) -> Published:
    """Return the report of a prepared model in the store; `outputs` is the file of its golden outputs."""
    return Published(
        key=manifest.key,
        model_digest=manifest.model_digest,
        opset=manifest.opset,
        ir_version=manifest.ir_version,
        nodes=manifest.nodes,
        size_bytes=sum(file.size_bytes for file in manifest.files),
        cached=cached,
        precision=manifest.precision,
        changes=_in_short(manifest.changes),
        golden_output_bytes=_largest_outputs(outputs),
        data=dict(data),
        signature=manifest.signature,
    )


def _largest_outputs(path: Path) -> int:
    sizes: Counter[str] = Counter()
    for key, array in map_arrays(path).items():
        sizes[key.partition("/")[0]] += array.nbytes
    return max(sizes.values(), default=0)


def _in_short(changes: tuple[Change, ...]) -> str:
    """Return the changes in one line, shortened for the termination message; the manifest has all."""
    text = "; ".join(change.message for change in changes)
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 2].rstrip() + " …"
