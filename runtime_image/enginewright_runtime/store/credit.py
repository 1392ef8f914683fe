"""Whose proofs an artefact in the store has.

A key says what an artefact was made from, not which code made it: a later release may compute other golden
outputs, choose another level of graph optimization, or refuse the model. So proofs belong to bytes. A
pipeline is credited with an artefact if it made it, or made and proved an equal one: a record names the
pipeline and the exact manifest, whose digests name the files. What another pipeline, an import or a copy of
a store left under the key has no credit. It stays if its files are the ones that this pipeline has just made
and proved; otherwise they replace it. A replaced artefact, and a lost record, cost one run of the stages.

In a bucket that several clusters use, whose operators may be of different releases, what another one may serve
is not replaced: two that did so would prepare for ever. What differs is stored aside, under a key of its own.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from enginewright_contract.keys import sha256_text
from enginewright_contract.manifest import ArtifactFile, Manifest

from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.store.store import Store

_log: Final = logging.getLogger(__name__)
# Facts that may differ of equal artefacts: what the key stands for, with addresses that are in no key;
# measurements; and words about changes that the files show
_APART: Final = frozenset(
    {
        "version",
        "recipe",
        "data",
        "versions",
        "node_costs",
        "parity",
        "processor",
        "changes",
        "engine",
    }
)
# Facts that earlier versions did not record; that they are absent contradicts nothing
_RECORDED_LATER: Final = frozenset(
    {
        "signature",
        "profiles",
        "varying",
        "sized_by_values",
        "source_opset",
        "saturable",
        "shape_nodes",
    }
)


Describe: TypeAlias = Callable[[tuple[ArtifactFile, ...]], Manifest]


@dataclass(frozen=True)
class Aside:
    """Another key, for what differs from an artefact that stays."""

    key: str
    describe: Describe


def publish(
    store: Store,
    key: str,
    files: Mapping[str, Path],
    describe: Describe,
    pipeline: str | None,
    find_aside: Callable[[], Aside | None] | None = None,
) -> tuple[Manifest, bool]:
    """Store what a pipeline has made and proved, as `Store.publish`, and credit it with what the store then has.

    Without a pipeline there is no credit. `find_aside` returns where to store it if an artefact that differs must stay,
    and None if that is replaced.
    """
    asides: list[Aside] = []

    def keeps(present: Manifest, made: Manifest) -> bool:
        # another Job of this pipeline may have made other bytes: of outputs that vary, or an engine
        is_ours = pipeline is not None and is_credited(store, present, pipeline)
        if is_ours or is_equal(present, made):
            return True
        aside = find_aside() if find_aside is not None else None
        asides[:] = [] if aside is None else [aside]
        return aside is not None

    manifest, cached = store.publish(key, files, describe, keeps)
    if cached and asides:
        (aside,) = asides
        return publish(store, aside.key, files, aside.describe, pipeline)
    if pipeline is not None:
        _give_credit(store, manifest, pipeline)
    return manifest, cached


def is_equal(present: Manifest, made: Manifest) -> bool:
    """Return whether an artefact in the store has the files of the one just made, and says the same of them."""
    made = _as_stored(made)
    return _files(present) == _files(made) and all(
        getattr(present, name) == getattr(made, name)
        or (name in _RECORDED_LATER and name not in present.model_fields_set)
        for name in Manifest.model_fields.keys() - _APART - {"files"}
    )


def is_credited(store: Store, manifest: Manifest, pipeline: str) -> bool:
    """Return whether a pipeline made the artefact of this manifest, or proved it; raises as `Store.get_cache`."""
    return store.get_cache(_name_record(manifest, pipeline)) is not None


def _give_credit(store: Store, manifest: Manifest, pipeline: str) -> None:
    """Record that a pipeline made or proved the artefact of this manifest; a failure is only logged."""
    try:
        store.put_cache(_name_record(manifest, pipeline), b"")
    except StageFailure as failure:
        _log.warning("the proof of %s is not recorded: %s", manifest.key[:12], failure.message)


def _name_record(manifest: Manifest, pipeline: str) -> str:
    return f"passed-{sha256_text(f'{pipeline} {_as_stored(manifest).to_json()}')}"


def _as_stored(manifest: Manifest) -> Manifest:
    """Return a manifest as it is read from the store."""
    return Manifest.model_validate_json(manifest.to_json())


def _files(manifest: Manifest) -> dict[str, tuple[str, int]]:
    return {file.path: (file.sha256, file.size_bytes) for file in manifest.files}
